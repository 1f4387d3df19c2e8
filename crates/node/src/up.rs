//! `cairn up`: an all-in-one store. The first start creates a data folder with a complete set of
//! OpenStack Swift's files; every start serves according to these files.
//!
//! Devices, replicas and the partition power are fixed by the first start: other values would move
//! partitions, and nothing here moves the data along.

mod console;
mod edit;
mod engine;
mod file_system;
mod files;
mod layout;
mod rings;
mod tls;
mod user_sources;
mod users;
mod welcome;

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE;
use cairn_console_api::ConsoleServer;
use cairn_formats::ini::Conf;
use tracing::warn;

use crate::conf::{ServerConf, read_conf};
use crate::lock::FolderLock;
use crate::logging::{self, LogOptions};
use crate::role::Role;
use crate::serve::{self, RunOptions};
use crate::settings::{LogLevel, ServerSettings};
use crate::store_tls::StoreTls;
pub use console::ConsoleChoice;
pub use engine::EngineChoice;
pub use layout::{Layout, Shape};
use rings::Ports;
pub use tls::TlsChoice;
pub use user_sources::{USERS_VARIABLE, UserOption, read as read_users};
pub use users::User;

/// Default region of the catalog.
const DEFAULT_REGION: &str = "RegionOne";
/// Default address for clients.
pub const DEFAULT_BIND: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8080);
const DEFAULT_SHAPE: Shape = Shape {
    devices: 4,
    replicas: 3,
    part_power: 10,
};

/// Options of the command line. `None` and empty: the folder's value, or the default.
#[derive(Clone, Debug, Default)]
pub struct UpOptions {
    pub data: Option<PathBuf>,
    /// Port 0 selects a free port, which is then stored.
    pub bind: Option<SocketAddr>,
    pub devices: Option<u32>,
    pub replicas: Option<u32>,
    pub part_power: Option<u32>,
    /// The engine of the store's policy.
    pub engine: Option<EngineChoice>,
    /// All users; those of an earlier start are removed.
    pub users: Vec<User>,
    /// Whether a key is among the arguments, which every local user can read.
    pub shows_keys: bool,
    /// Acknowledges writes before they are durable.
    pub unsafe_no_fsync: bool,
    pub log: LogOptions,
    pub pid_file: Option<PathBuf>,
    pub console: ConsoleChoice,
    /// None for the previous start's choice.
    pub tls: Option<TlsChoice>,
    /// Host names accepted by the console, beside addresses and `localhost`.
    pub console_hosts: Vec<String>,
    /// Local folders that the console's runs may use.
    pub allow_local: Vec<PathBuf>,
}

/// A data folder that is ready to be served; locked until dropped.
#[derive(Debug)]
pub struct Store {
    pub layout: Layout,
    pub shape: Shape,
    pub bind: SocketAddr,
    pub users: Vec<User>,
    pub first_start: bool,
    /// The store's TLS, if enabled.
    pub tls: Option<StoreTls>,
    pub region: String,
    _lock: FolderLock,
}

/// Creates the data folder, or updates its files by the options; serves nothing.
///
/// # Errors
/// The folder is in use or cannot be written, an option is out of range or contradicts the store
/// that is there, an address is taken, or the default user would be open to other machines.
pub fn write_configuration(options: &UpOptions) -> Result<Store> {
    let data = match &options.data {
        Some(data) => data.clone(),
        None => Layout::default_data()?,
    };
    let layout = Layout::new(&data)?;
    let is_new = !layout.data.exists();
    layout::make_private_folder(&layout.data)
        .with_context(|| format!("--data {}: cannot make this folder", data.display()))?;
    let lock = FolderLock::data(&layout.data)?;
    let made = layout.data.clone();
    let mut store = match layout.shape()? {
        Some(shape) => {
            layout.make_private();
            reuse(layout, shape, lock, options)?
        }
        None => create(layout, lock, options).inspect_err(|_| {
            if is_new {
                // Removes an incomplete store; the returned error has the remedy.
                let _ = fs::remove_dir_all(&made);
            }
        })?,
    };
    store.tls = tls::settle(&store, options)?;
    Ok(store)
}

/// Serves the store until a signal ends it, and beside it `console`, if the options have one.
///
/// # Errors
/// The data folder cannot be prepared (see [`write_configuration`]), nor the console, or the
/// servers cannot serve (see [`serve::run`]).
pub fn up(options: UpOptions, console: Arc<dyn ConsoleServer>) -> Result<()> {
    logging::start(&options.log, LogLevel::Info)?;
    let store = write_configuration(&options)?;
    let confs = Role::ALL
        .into_iter()
        .map(|role| ServerConf::load(&store.layout.conf(role.server_name())))
        .collect::<Result<Vec<_>>>()?;
    warn_of_keys(&store, &options);
    for device in missing_devices(&store) {
        warn!(
            device, folder = %store.layout.devices.join(&device).display(),
            "this device's folder is gone: the device is down, the others serve"
        );
    }
    let console = console::prepare(console, &options, &store, &confs)?;
    let console_shown = console.as_ref().map(|(run, password)| (run.bind, password));
    let greeting = welcome::text(&store, console_shown);
    serve::run(
        confs,
        RunOptions {
            log: options.log,
            pid_file: options.pid_file,
            unsafe_no_fsync: options.unsafe_no_fsync,
            greeting: Some(greeting),
            console: console.map(|(run, _)| run),
            worker: None,
        },
    )
}

fn missing_devices(store: &Store) -> Vec<String> {
    Layout::device_names(store.shape.devices)
        .filter(|name| !store.layout.devices.join(name).is_dir())
        .collect()
}

fn warn_of_keys(store: &Store, options: &UpOptions) {
    if options.shows_keys {
        warn!("--user with a key shows it to all users of this machine (ps): use --user-file");
    }
    if store.users.iter().any(User::is_default) {
        warn!("test:tester has the key that everybody knows: the store is open to this machine");
    }
}

/// Refuses to serve other hosts with the well-known key.
fn refuse_default_key_from_afar(
    bind: SocketAddr,
    console: ConsoleChoice,
    users: &[User],
) -> Result<()> {
    if !users.iter().any(User::is_default) {
        return Ok(());
    }
    let is_far = |address: SocketAddr| !address.ip().to_canonical().is_loopback();
    let refuse = |option: &str, address: SocketAddr| {
        bail!(
            "{option} {address}: other machines could use the default user test:tester, whose key \
             everybody knows: name users of your own with --user-file FILE (lines \
             ACCOUNT:USER=KEY,.admin), --user ACCOUNT:USER,.admin (asks for the key) or \
             {USERS_VARIABLE}, or stay on 127.0.0.1"
        )
    };
    match console {
        _ if is_far(bind) => refuse("--bind", bind),
        ConsoleChoice::At(address) if is_far(address) => refuse("--console", address),
        _ => Ok(()),
    }
}

/// The first start.
fn create(layout: Layout, lock: FolderLock, options: &UpOptions) -> Result<Store> {
    if let Some(device) = layout.first_used_device() {
        bail!(
            "{} is missing, but {} holds data: restore the folder {} from a backup, or choose \
             another folder with --data",
            layout.conf("cairn-up").display(),
            device.display(),
            layout.etc.display()
        );
    }
    let shape = Shape {
        devices: options.devices.unwrap_or(DEFAULT_SHAPE.devices),
        // A store of one or two devices needs only --devices.
        replicas: options.replicas.unwrap_or_else(|| {
            DEFAULT_SHAPE
                .replicas
                .min(options.devices.unwrap_or(DEFAULT_SHAPE.devices))
        }),
        part_power: options.part_power.unwrap_or(DEFAULT_SHAPE.part_power),
    };
    check(shape)?;
    let mut bind = options.bind.unwrap_or(DEFAULT_BIND);
    choose_port(&mut bind)?;
    let ports = backend_ports(bind.port())?;
    let users = match &options.users[..] {
        [] => vec![User::tester()],
        users => users.to_vec(),
    };
    refuse_default_key_from_afar(bind, options.console, &users)?;
    file_system::check(&layout.data)?;
    for folder in [&layout.etc, &layout.devices, &layout.cache] {
        layout::make_private_folder(folder)
            .with_context(|| format!("cannot make {}", folder.display()))?;
    }
    for name in Layout::device_names(shape.devices) {
        let folder = layout.devices.join(name);
        layout::make_private_folder(&folder)
            .with_context(|| format!("cannot make {}", folder.display()))?;
    }
    let random = || format!("{:032x}", rand::random::<u128>());
    let fernet_key = URL_SAFE.encode(rand::random::<[u8; 32]>());
    let proxy = files::ProxyFile {
        bind,
        etc: &layout.etc,
        fernet_key: &fernet_key,
        users: &users,
    };
    let mut texts = vec![
        (
            "swift",
            files::swift_conf(&random(), &random(), options.engine.unwrap_or_default()),
        ),
        (Role::Proxy.server_name(), files::proxy_conf(&proxy)),
        ("identity", files::IDENTITY_CONF.to_owned()),
        (
            files::INTERNAL_CLIENT,
            files::internal_client_conf(&layout.etc),
        ),
    ];
    for (role, port) in [
        (Role::Account, ports.account),
        (Role::Container, ports.container),
        (Role::Object, ports.object),
    ] {
        let text = files::backend_conf(role, port, &layout);
        texts.push((role.server_name(), text));
    }
    for (name, text) in texts {
        layout::write_file(&layout.conf(name), text.as_bytes())?;
    }
    rings::write_rings(&layout, shape, ports)?;
    layout.finish(shape)?;
    Ok(Store {
        layout,
        shape,
        bind,
        users,
        first_start: true,
        region: DEFAULT_REGION.to_owned(),
        tls: None,
        _lock: lock,
    })
}

/// A later start: keeps the files, except for changes by the options.
fn reuse(layout: Layout, shape: Shape, lock: FolderLock, options: &UpOptions) -> Result<Store> {
    for (option, given, made) in [
        ("--devices", options.devices, shape.devices),
        ("--replicas", options.replicas, shape.replicas),
        ("--part-power", options.part_power, shape.part_power),
    ] {
        if given.is_some_and(|given| given != made) {
            bail!(
                "{option} {}: the store in {} was made with {made}, and this cannot be changed \
                 with data in it: leave {option} away, or make another store with --data",
                given.unwrap_or_default(),
                layout.data.display()
            );
        }
    }
    if let Some(engine) = options.engine {
        engine.check(&layout)?;
    }
    let path = layout.conf(Role::Proxy.server_name());
    let read =
        || fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()));
    let before = read()?;
    let mut text = before.clone();
    let section = "filter:tempauth";
    let users_of = |conf: &Conf| User::of_section(&conf.section_or_defaults(section));
    {
        let bind = match options.bind {
            Some(bind) => bind,
            None => ServerSettings::read(&ServerConf::load(&path)?)?.bind,
        };
        let users = match &options.users[..] {
            [] => users_of(&read_conf(&path)?),
            users => users.to_vec(),
        };
        refuse_default_key_from_afar(bind, options.console, &users)?;
    }
    if let Some(mut bind) = options.bind {
        choose_port(&mut bind)?;
        text = edit::set_option(&text, "DEFAULT", "bind_ip", &bind.ip().to_string());
        text = edit::set_option(&text, "DEFAULT", "bind_port", &bind.port().to_string());
    }
    if !options.users.is_empty() {
        let of_user = |option: &str| option.starts_with("user_") || option.starts_with("user64_");
        text = edit::remove_options(&text, section, of_user);
        for user in &options.users {
            let (option, value) = user.conf_line();
            text = edit::set_option(&text, section, &option, &value);
        }
    }
    if text != before {
        layout::write_file(&path, text.as_bytes())?;
    }
    let bind = ServerSettings::read(&ServerConf::load(&path)?)?.bind;
    let conf = read_conf(&path)?;
    let identity = conf.section_or_defaults("filter:identity");
    Ok(Store {
        layout,
        shape,
        bind,
        users: users_of(&conf),
        first_start: false,
        region: identity.str_or("region", DEFAULT_REGION).to_owned(),
        tls: None,
        _lock: lock,
    })
}

fn check(shape: Shape) -> Result<()> {
    let Shape {
        devices,
        replicas,
        part_power,
    } = shape;
    if !(1..=256).contains(&devices) {
        bail!("--devices {devices}: expected 1 to 256");
    }
    if !(1..=16).contains(&replicas) {
        bail!("--replicas {replicas}: expected 1 to 16");
    }
    if replicas > devices {
        bail!(
            "--replicas {replicas}: each copy needs a device of its own, and there are {devices}: \
             add --devices {replicas}, or choose fewer replicas"
        );
    }
    if !(1..=20).contains(&part_power) {
        bail!("--part-power {part_power}: expected 1 to 20; 10 makes 1024 partitions");
    }
    Ok(())
}

/// Replaces port 0 by a free port; any other must be free, before anything is written.
fn choose_port(bind: &mut SocketAddr) -> Result<()> {
    let free = TcpListener::bind(*bind).and_then(|listener| listener.local_addr());
    *bind = free.with_context(|| {
        format!("--bind {bind}: cannot listen there: choose another address or port with --bind")
    })?;
    Ok(())
}

/// Three consecutive free ports below the ephemeral range: they are written into the rings and must
/// be free at every start.
fn backend_ports(taken: u16) -> Result<Ports> {
    for _ in 0..200 {
        let first = 10_000 + rand::random::<u16>() % 22_000;
        let ports = [first, first + 1, first + 2];
        let free =
            |port: &u16| *port != taken && TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok();
        if ports.iter().all(free) {
            let [object, container, account] = ports;
            return Ok(Ports {
                account,
                container,
                object,
            });
        }
    }
    bail!("found no three free ports between 10000 and 32000 on 127.0.0.1 for the storage servers");
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
