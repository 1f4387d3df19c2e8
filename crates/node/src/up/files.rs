//! Texts of the conf files written by `cairn up`: ordinary files of OpenStack Swift, which `cairn
//! serve` also runs, in one process or several.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::path::Path;

use crate::role::Role;
use crate::up::engine::EngineChoice;
use crate::up::layout::Layout;
use crate::up::users::User;

/// One filter of the proxy's pipeline: name in the conf, entry point, options.
struct Filter {
    name: &'static str,
    entry_point: &'static str,
    options: &'static [&'static str],
}

const fn filter(
    name: &'static str,
    entry_point: &'static str,
    options: &'static [&'static str],
) -> Filter {
    Filter {
        name,
        entry_point,
        options,
    }
}

/// The proxy's filters, outermost first: Swift's default order. Those that this build lacks are
/// omitted.
const PIPELINE: &[Filter] = &[
    filter("catch_errors", "catch_errors", &[]),
    filter("gatekeeper", "gatekeeper", &[]),
    filter("healthcheck", "healthcheck", &[]),
    filter("proxy-logging", "proxy_logging", &[]),
    filter("cache", "memcache", &[]),
    filter("etag-quoter", "etag_quoter", &[]),
    filter("domain_remap", "domain_remap", &[]),
    filter("listing_formats", "listing_formats", &[]),
    filter("bulk", "bulk", &[]),
    filter("tempurl", "tempurl", &[]),
    filter("formpost", "formpost", &[]),
    filter("crossdomain", "crossdomain", &[]),
    filter("identity", "identity", &[]),
    filter(
        "keystoneauth",
        "keystoneauth",
        &[
            "reseller_prefix = AUTH, SERVICE",
            "operator_roles = admin, swiftoperator",
            "SERVICE_service_roles = service",
            "system_reader_roles = system_reader",
        ],
    ),
    filter("tempauth", "tempauth", &[]),
    filter("staticweb", "staticweb", &[]),
    filter("copy", "copy", &[]),
    filter("container-quotas", "container_quotas", &[]),
    filter("account-quotas", "account_quotas", &[]),
    // Otherwise a large object of many small segments, such as a file written by many hosts at
    // first, would be read at one segment per second.
    filter("slo", "slo", &["rate_limit_segments_per_sec = 1000"]),
    filter("dlo", "dlo", &[]),
    filter(
        "versioned_writes",
        "versioned_writes",
        &[
            "allow_versioned_writes = true",
            "allow_object_versioning = true",
        ],
    ),
    filter("symlink", "symlink", &[]),
    filter("proxy-logging", "proxy_logging", &[]),
];

/// The filters of [`PIPELINE`] that this build has.
fn pipeline() -> impl Iterator<Item = &'static Filter> {
    let built = crate::pipeline::filters().known();
    PIPELINE
        .iter()
        .filter(move |f| built.contains(&f.entry_point))
}

pub(crate) fn swift_conf(prefix: &str, suffix: &str, engine: EngineChoice) -> String {
    format!(
        "# Written by cairn up. Never change the prefix or suffix: they are part of every name on\n\
         # disk.\n\
         [swift-hash]\n\
         swift_hash_path_prefix = {prefix}\n\
         swift_hash_path_suffix = {suffix}\n\
         \n\
         [storage-policy:0]\n\
         name = Policy-0\n\
         default = yes\n\
         {engine}",
        engine = engine.conf_line()
    )
}

/// Values of the proxy's conf that differ between stores.
pub(crate) struct ProxyFile<'a> {
    pub(crate) bind: SocketAddr,
    pub(crate) etc: &'a Path,
    /// Key that seals tokens, so that they outlive a restart: 32 bytes, URL-safe base64.
    pub(crate) fernet_key: &'a str,
    pub(crate) users: &'a [User],
}

pub(crate) fn proxy_conf(file: &ProxyFile<'_>) -> String {
    let mut text = format!(
        "# Written by cairn up, which changes bind_ip, bind_port and the users when it is told\n\
         # other ones; the rest is yours.\n\
         [DEFAULT]\n\
         bind_ip = {ip}\n\
         bind_port = {port}\n\
         swift_dir = {etc}\n\
         \n\
         [pipeline:main]\n\
         pipeline = {names} proxy-server\n\
         \n\
         [app:proxy-server]\n\
         use = egg:swift#proxy\n\
         account_autocreate = true\n\
         allow_account_management = true\n\
         # Answer once all copies are written, not only most of them, if that takes no longer than\n\
         # this many seconds more.\n\
         post_quorum_timeout = 10\n\
         \n",
        names = pipeline().map(|f| f.name).collect::<Vec<_>>().join(" "),
        ip = file.bind.ip(),
        port = file.bind.port(),
        etc = file.etc.display(),
    );
    let mut written = HashSet::from(["tempauth"]);
    for filter in pipeline().filter(|f| written.insert(f.name)) {
        let (name, entry_point) = (filter.name, filter.entry_point);
        let egg = if name == "identity" { "cairn" } else { "swift" };
        text.push_str(&format!("[filter:{name}]\nuse = egg:{egg}#{entry_point}\n"));
        for option in filter.options {
            text.push_str(&format!("{option}\n"));
        }
        text.push('\n');
    }
    text.push_str(&format!(
        "[filter:tempauth]\n\
         use = egg:swift#tempauth\n\
         reseller_prefix = AUTH, SERVICE\n\
         SERVICE_require_group = service\n\
         fernet_key_first = {key}\n\
         active_fernet_key_id = first\n\
         # user_ACCOUNT_USER = KEY [GROUP ...]; the group .admin owns the account.\n",
        key = file.fernet_key
    ));
    for user in file.users {
        let (option, value) = user.conf_line();
        text.push_str(&format!("{option} = {value}\n"));
    }
    text
}

/// Initial content of `identity.conf`: a description of its format.
pub(crate) const IDENTITY_CONF: &str = "\
# Users and projects for clients that speak Keystone, beside the users of [filter:tempauth] in
# proxy-server.conf, whose account is their project. Read at start. A project's account is
# AUTH_<its id>; its id is its name unless it is given.
#
# [project:photos]
# id = photos
# description = Holiday pictures
#
# [user:alice]
# password = wonderland
# roles = photos: swiftoperator, films: member
# default_project = photos
";

/// The conf of an account, container or object server.
pub(crate) fn backend_conf(role: Role, port: u16, layout: &Layout) -> String {
    let mut text = format!(
        "# Written by cairn up. The port is part of the rings: it cannot be changed here alone.\n\
         [DEFAULT]\n\
         bind_ip = 127.0.0.1\n\
         bind_port = {port}\n\
         swift_dir = {etc}\n\
         devices = {devices}\n\
         mount_check = false\n\
         # One process has all databases open: remove this before others work on them.\n\
         exclusive_databases = yes\n\
         recon_cache_path = {cache}\n\
         {more}\
         log_level = WARNING\n\
         \n\
         [pipeline:main]\n\
         pipeline = healthcheck recon {server}\n\
         \n\
         [app:{server}]\n\
         use = egg:swift#{role}\n\
         \n\
         [filter:healthcheck]\n\
         use = egg:swift#healthcheck\n\
         \n\
         [filter:recon]\n\
         use = egg:swift#recon\n",
        etc = layout.etc.display(),
        devices = layout.devices.display(),
        cache = layout.cache.display(),
        server = role.server_name(),
        role = role.as_str(),
        more = match role {
            Role::Object => VOLUMES,
            _ => "",
        },
    );
    text.push_str(match role {
        Role::Proxy => "",
        Role::Account => ACCOUNT_DAEMONS,
        Role::Container => CONTAINER_DAEMONS,
        Role::Object => OBJECT_DAEMONS,
    });
    if role == Role::Object {
        let client = layout.conf(INTERNAL_CLIENT);
        text.push_str(&format!(
            "internal_client_conf_path = {}\n",
            client.display()
        ));
    }
    text
}

/// Volumes of 32 MiB: all devices are folders of one file system, and each begins with five volumes for every
/// policy.
const VOLUMES: &str = "pebbles_volume_bytes = 33554432\n";

// Passes are less frequent and auditors slower than by default: a small store shares its host with
// its clients, and a pass costs the same whether or not anything is wrong.
const ACCOUNT_DAEMONS: &str = "\
\n[account-replicator]\ninterval = 300\nwhole_databases = rows\n\
\n[account-auditor]\n\
\n[account-reaper]\n";
const CONTAINER_DAEMONS: &str = "\
\n[container-replicator]\ninterval = 300\nwhole_databases = rows\n\
\n[container-auditor]\n\
\n[container-updater]\ninterval = 5\n";
const OBJECT_DAEMONS: &str = "\
\n[object-replicator]\ninterval = 300\nconcurrency = 1\nsync_method = ssync\n\
\n[object-auditor]\nfiles_per_second = 5\nbytes_per_second = 2000000\n\
zero_byte_files_per_second = 10\n\
\n[object-updater]\ninterval = 5\nobjects_per_second = 2000\n\
\n[object-expirer]\ndequeue_from_legacy = true\n";

/// Name of the conf of the expirer's internal client.
pub(crate) const INTERNAL_CLIENT: &str = "internal-client";

/// A pipeline for internal requests, without filters for clients.
pub(crate) fn internal_client_conf(etc: &Path) -> String {
    format!(
        "# Written by cairn up: the way of the store's own requests.\n\
         [DEFAULT]\n\
         swift_dir = {}\n\
         \n\
         [pipeline:main]\n\
         pipeline = catch_errors cache symlink proxy-server\n\
         \n\
         [app:proxy-server]\n\
         use = egg:swift#proxy\n\
         account_autocreate = true\n\
         \n\
         [filter:catch_errors]\n\
         use = egg:swift#catch_errors\n\
         \n\
         [filter:cache]\n\
         use = egg:swift#memcache\n\
         \n\
         [filter:symlink]\n\
         use = egg:swift#symlink\n",
        etc.display()
    )
}
