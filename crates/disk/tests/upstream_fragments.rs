//! Directories of erasure-coded objects, made up at random, as OpenStack Swift's own diskfile
//! manager sees them and as they are seen here: the file that counts, what clean-up leaves, the
//! suffix hashes.
//!
//! Set `CAIRN_SWIFT_PYTHON` to a Python that has `swift` installed; without it the test says so
//! and passes.
#![allow(clippy::unwrap_used)]

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use cairn_disk::engine::Inventory;
use cairn_disk::layout::{FileEntry, choose_fragments};
use cairn_disk::{
    Devices, DevicesConfig, DiskFileConfig, DiskFileEngine, FragmentChoice, FragmentPreference,
    PartitionKey, suffix_hashes,
};
use cairn_types::{
    EcType, ErasureScheme, HashPath, ObjectHash, PolicyIndex, PolicyKind, PolicySet, StoragePolicy,
    Timestamp,
};
use serde_json::{Value, json};

/// Prints, for each case it reads, what Swift makes of it; then hashes the partition.
const SCRIPT: &str = r#"
import os, sys, json
from swift.common import utils
from swift.common.utils import Timestamp
utils.HASH_PATH_PREFIX, utils.HASH_PATH_SUFFIX = b'', b'endcap'
utils.validate_hash_conf = lambda: None
from swift.common import storage_policy
from swift.obj import diskfile
class Policy:
    # No codec is needed to look at names.
    policy_type = storage_policy.EC_POLICY
    ec_ndata, ec_nparity, idx = 4, 2, 1
    def __int__(self): return 1
policy = Policy()
diskfile.get_data_dir = lambda p: 'objects-1'
conf = {'devices': os.environ['DEVICES'], 'mount_check': 'false'}
m = diskfile.ECDiskFileManager(conf, utils.get_logger({}, name='upstream'))
m.logger.logger.disabled = True
def name(info):
    return info['filename'] if info else None
for line in sys.stdin:
    case = json.loads(line)
    prefs = case['prefs']
    if prefs is not None:
        prefs = [{'timestamp': Timestamp(p['timestamp']), 'exclude': p['exclude']} for p in prefs]
    r = m.get_ondisk_files(case['files'], '', verify=False, policy=policy,
                           frag_index=case['index'], frag_prefs=prefs)
    durable = r.get('durable_frag_set')
    print(json.dumps({
        'data': name(r.get('data_info')), 'meta': name(r.get('meta_info')),
        'ctype': name(r.get('ctype_info')), 'ts': name(r.get('ts_info')),
        'obsolete': sorted(name(i) for i in r.get('obsolete', [])),
        'reclaim': sorted(name(i) for i in r.get('possible_reclaim', [])
                          if i not in r.get('obsolete', [])),
        'durable': durable[0]['timestamp'].internal if durable else None,
        'sets': [[t.internal, [i['frag_index'] for i in s]] for t, s in r['frag_sets'].items()],
    }))
hashes = m._get_hashes('d', '7', policy, do_listdir=True)[1]
print(json.dumps({s: {str(k): v for k, v in h.items()} for s, h in hashes.items()},
                 sort_keys=True))
left = {}
for d, _, files in os.walk(os.environ['DEVICES'] + '/d/objects-1/7'):
    if len(os.path.basename(d)) == 32: left[os.path.basename(d)] = sorted(files)
print(json.dumps(left, sort_keys=True))
"#;

struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }

    /// A few times, all in the future or all old enough to be reclaimed.
    fn time(&mut self, base: u64) -> String {
        let offset = if self.roll(4) == 0 {
            "_0000000000000001"
        } else {
            ""
        };
        format!("{:010}.00000{offset}", base + self.roll(5))
    }

    fn files(&mut self) -> Vec<String> {
        let base = if self.roll(3) == 0 { 7 } else { 4_000_000_000 };
        let mut files: Vec<String> = (0..1 + self.roll(6))
            .map(|_| {
                let time = self.time(base);
                match self.roll(12) {
                    0 => format!("{time}.ts"),
                    1 => format!("{time}.meta"),
                    2 => format!("{time}.durable"),
                    3 => format!("{time}.data"),
                    4 => format!("{time}#7.data"),
                    5..=8 => format!("{time}#{}.data", self.roll(6)),
                    _ => format!("{time}#{}#d.data", self.roll(6)),
                }
            })
            .collect();
        files.sort();
        files.dedup();
        files
    }

    fn choice(&mut self) -> FragmentChoice {
        let index = (self.roll(2) == 0).then(|| self.roll(6) as u32);
        let preferences = (self.roll(3) == 0).then(|| {
            let preference = |dice: &mut Dice| FragmentPreference {
                timestamp: dice.time(4_000_000_000).parse().unwrap(),
                exclude: (0..6).filter(|_| dice.roll(2) == 0).collect(),
            };
            (0..self.roll(3)).map(|_| preference(self)).collect()
        });
        FragmentChoice { index, preferences }
    }
}

/// Our choice in the script's format.
fn chosen(files: &[String], choice: &FragmentChoice) -> Value {
    let entries = files.iter().filter_map(|name| FileEntry::parse(name));
    let chosen = choose_fragments(entries, 6, choice);
    let name = |entry: &Option<FileEntry>| entry.as_ref().map(|e| e.name.clone());
    let names = |entries: &[FileEntry]| {
        let mut names: Vec<String> = entries.iter().map(|e| e.name.clone()).collect();
        names.sort();
        names
    };
    let sets = chosen.fragments.sets.iter();
    let sets: Vec<Value> = sets
        .map(|set| json!([set.timestamp.internal(), set.indices().collect::<Vec<_>>()]))
        .collect();
    json!({
        "data": name(&chosen.data), "meta": name(&chosen.meta),
        "ctype": name(&chosen.content_type), "ts": name(&chosen.tombstone),
        "obsolete": names(&chosen.obsolete), "reclaim": names(&chosen.reclaimable),
        "durable": chosen.fragments.durable.map(Timestamp::internal), "sets": sets,
    })
}

fn policies() -> PolicySet {
    let policy = |index, name: &str, kind| StoragePolicy {
        index: PolicyIndex(index),
        name: name.into(),
        aliases: Vec::new(),
        is_default: index == 0,
        deprecated: false,
        kind,
    };
    let scheme = ErasureScheme::new(EcType::IsaLRsVand, 4, 2).unwrap();
    PolicySet::new(vec![
        policy(0, "gold", PolicyKind::Replication),
        policy(1, "ec", PolicyKind::ErasureCoding(scheme)),
    ])
    .unwrap()
}

fn write(root: &Path, hash: ObjectHash, files: &[String]) {
    let dir = root.join(format!("d/objects-1/7/{}/{}", hash.suffix(), hash.hex()));
    std::fs::create_dir_all(&dir).unwrap();
    for name in files {
        std::fs::write(dir.join(name), "").unwrap();
    }
}

#[test]
fn random_directories_are_seen_alike() {
    let Ok(python) = std::env::var("CAIRN_SWIFT_PYTHON") else {
        println!("skipped: CAIRN_SWIFT_PYTHON is not set");
        return;
    };
    let (theirs, ours) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut dice = Dice(0x5eed);
    let mut cases = Vec::new();
    for number in 0..3000 {
        let (files, choice) = (dice.files(), dice.choice());
        // Swift's clean-up stumbles over a marker without fragments, which it counts twice.
        if number % 5 == 0 && !files.iter().any(|name| name.ends_with(".durable")) {
            let hash = HashPath::new("", "endcap").hash("a", Some("c"), Some(&number.to_string()));
            write(theirs.path(), hash, &files);
            write(ours.path(), hash, &files);
        }
        cases.push((files, choice));
    }
    let mut swift = Command::new(python)
        .args(["-c", SCRIPT])
        .env("DEVICES", theirs.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = swift.stdin.take().unwrap();
    let lines: String = cases
        .iter()
        .map(|(files, choice)| {
            let prefs = choice.preferences.as_ref().map(|preferences| {
                let prefs = preferences.iter();
                prefs
                    .map(|p| json!({"timestamp": p.timestamp.internal(), "exclude": p.exclude}))
                    .collect::<Vec<_>>()
            });
            json!({"files": files, "index": choice.index, "prefs": prefs}).to_string() + "\n"
        })
        .collect();
    let feed = std::thread::spawn(move || stdin.write_all(lines.as_bytes()).unwrap());
    let output = swift.wait_with_output().unwrap();
    feed.join().unwrap();
    assert!(output.status.success());
    let answers = String::from_utf8(output.stdout).unwrap();
    let mut answers = answers
        .lines()
        .map(|line| -> Value { serde_json::from_str(line).unwrap() });
    for (files, choice) in &cases {
        let expected = answers.next().unwrap();
        assert_eq!(chosen(files, choice), expected, "{files:?} {choice:?}");
    }

    let mut config = DevicesConfig::new(ours.path());
    config.mount_check = false;
    let disk = Devices::new(config).get("d").unwrap().disk().unwrap();
    let engine = DiskFileEngine::new(
        HashPath::new("", "endcap"),
        &policies(),
        DiskFileConfig::default(),
    );
    let found = engine
        .suffix_hashes(&disk, PartitionKey::new(PolicyIndex(1), 7), &[], true)
        .unwrap();
    let found: serde_json::Map<String, Value> = found
        .hashes
        .iter()
        .map(|(suffix, hash)| {
            let hashes = hash.fragments().unwrap().iter().map(|(index, hash)| {
                let index = index.map_or("None".to_owned(), |index| index.to_string());
                (index, hash.as_str().into())
            });
            (suffix.clone(), Value::Object(hashes.collect()))
        })
        .collect();
    let expected = answers.next().unwrap();
    for (suffix, hash) in expected.as_object().unwrap() {
        assert_eq!(found.get(suffix), Some(hash), "{suffix}");
    }
    assert_eq!(found.len(), expected.as_object().unwrap().len());
    // Files left by the clean-up.
    for (hash, names) in answers.next().unwrap().as_object().unwrap() {
        let dir = ours
            .path()
            .join(format!("d/objects-1/7/{}/{hash}", &hash[29..]));
        let mut left: Vec<String> = std::fs::read_dir(dir)
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        assert_eq!(json!(left), *names, "{hash}");
    }
    // And Swift believes what we wrote.
    assert!(suffix_hashes::read_hashes(&disk, "objects-1/7").valid);
}
