//! Usage texts of all verbs, for `--help` and for calls with missing arguments.

use std::io::{self, Write};

use super::Stop;

const SEARCH_HELP: &str = "
A search value is
    d<id>r<region>z<zone>-<ip>:<port>R<replication ip>:<replication port>/<device>_<meta>
with any of its parts left out, for example
    d7               the device with id 7
    r1z2             all of region 1, zone 2
    z1-10.0.0.1      one host in any zone 1
    [::1]:6200       an IPv6 address and a port
    R:6300           a replication port
    /sdb1            a device name
    _rack 7          devices whose meta contains \"rack 7\"
or, with options,
    --id --region --zone --ip --port --replication-ip --replication-port --device --weight --meta";

/// Verb, arguments, explanation; `true` if search values need an explanation too.
const VERBS: &[(&str, &str, &str, bool)] = &[
    (
        "add",
        "[r<region>]z<zone>-<ip>:<port>[R<ip>:<port>]/<device>[_<meta>] <weight> [...]\n  or: add \
         --region R --zone Z --ip IP --port PORT [--replication-ip IP] [--replication-port PORT] \
         --device NAME --weight W [--meta TEXT]",
        "Adds devices. They get partitions with the next rebalance.",
        false,
    ),
    (
        "cancel_increase_partition_power",
        "",
        "Takes back a prepared increase; clean up, then finish.",
        false,
    ),
    (
        "create",
        "<part_power> <replicas> <min_part_hours>",
        "Makes a builder with 2^<part_power> partitions. A partition moves at most once in \
         <min_part_hours>.",
        false,
    ),
    (
        "dispersion",
        "[<search_filter>] [-v|--verbose] [--recalculate]",
        "Reports where replicas of a partition are closer together than they need be. The filter \
         is a regular expression on tier names: r1, r1z2, r1z2-10.0.0.1, r1z2-10.0.0.1/sdb1.",
        false,
    ),
    (
        "finish_increase_partition_power",
        "",
        "Ends a partition power increase after the old links are cleaned up.",
        false,
    ),
    (
        "increase_partition_power",
        "",
        "Doubles the partitions of a prepared ring, after relinking.",
        false,
    ),
    (
        "list_parts",
        "<search-value> [<search-value> ...]",
        "Lists the partitions on matching devices and on how many of them, most first.",
        true,
    ),
    (
        "prepare_increase_partition_power",
        "",
        "Announces the next partition power in the ring, so that servers make links for it.",
        false,
    ),
    (
        "pretend_min_part_hours_passed",
        "",
        "Lets every partition move in the next rebalance. Before replication has finished, this \
         can make data unreachable.",
        false,
    ),
    (
        "rebalance",
        "[-s|--seed SEED] [-f|--force] [-d|--debug] [--format-version 1|2]",
        "Moves partitions towards the devices' weights and apart from each other, and writes the \
         ring. The same seed gives the same ring.",
        false,
    ),
    (
        "remove",
        "<search-value> [<search-value> ...] [--yes]",
        "Marks devices for removal; the next rebalance moves what they hold at once. Meant for \
         failed devices: drain others with set_weight 0 first.",
        true,
    ),
    ("search", "<search-value>", "Shows matching devices.", true),
    (
        "set_info",
        "<search-value> <ip>:<port>[R<ip>:<port>]/<device>_<meta> [...] [--yes]\n  or: set_info \
         <search options> [--change-ip IP] [--change-port PORT] [--change-replication-ip IP] \
         [--change-replication-port PORT] [--change-device NAME] [--change-meta TEXT] [--yes]",
        "Changes addresses, names or meta; give only what changes. Needs write_ring, no rebalance.",
        true,
    ),
    (
        "set_min_part_hours",
        "<hours>",
        "Sets how long a moved partition rests: at least one full replication pass.",
        false,
    ),
    (
        "set_overload",
        "<overload>[%]",
        "Sets how far beyond its weight a device may be filled for better dispersion.",
        false,
    ),
    (
        "set_region",
        "<search-value> <region> [...] [--yes]",
        "Changes devices' regions.",
        true,
    ),
    (
        "set_replicas",
        "<replicas>",
        "Sets the replica count, which may be fractional: with 3.25 a quarter of the partitions \
         have four.",
        false,
    ),
    (
        "set_weight",
        "<search-value> <weight> [...] [--yes]",
        "Changes devices' weights.",
        true,
    ),
    (
        "set_zone",
        "<search-value> <zone> [...] [--yes]",
        "Changes devices' zones.",
        true,
    ),
    (
        "validate",
        "",
        "Checks that every replica has a device and none has two.",
        false,
    ),
    (
        "version",
        "",
        "Shows a ring file's format and builder version.",
        false,
    ),
    (
        "write_builder",
        "[<min_part_hours>]",
        "Recovers a lost builder from its ring file, without overload and times of last moves.",
        false,
    ),
    (
        "write_ring",
        "[--format-version 1|2] [--dev-id-bytes 2|4]",
        "Writes the ring file again, for example after set_info.",
        false,
    ),
];

pub(super) fn verbs() -> Vec<&'static str> {
    VERBS.iter().map(|(verb, ..)| *verb).collect()
}

pub(super) fn of(verb: &str) -> Option<String> {
    let (verb, arguments, explanation, searches) = VERBS.iter().find(|(v, ..)| *v == verb)?;
    let file = match *verb {
        "version" | "write_builder" => "<ring_file>",
        _ => "<builder_file>",
    };
    let search = if *searches { SEARCH_HELP } else { "" };
    let line = format!("swift-ring-builder {file} {verb} {arguments}");
    Some(format!("{}\n    {explanation}{search}", line.trim_end()))
}

/// The early end of a command with too few or contradictory arguments.
pub(super) fn stop(verb: &str) -> Stop {
    Stop::error(of(verb).unwrap_or_default())
}

pub(super) fn overview(out: &mut dyn Write) -> io::Result<()> {
    writeln!(
        out,
        "swift-ring-builder <builder_file>\n    Shows the ring and its devices. Flag DEL: the \
         device goes away with the next rebalance.\n"
    )?;
    for verb in verbs() {
        let text = of(verb).unwrap_or_default();
        writeln!(out, "{}\n", text.replace(SEARCH_HELP, ""))?;
    }
    writeln!(out, "{}\n", SEARCH_HELP.trim_start())?;
    writeln!(
        out,
        "Exit codes: 0 = operation successful\n            1 = operation completed with \
         warnings\n            2 = error"
    )
}
