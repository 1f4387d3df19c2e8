use std::sync::Arc;
use std::time::Instant;
use bytes::Bytes;
use cairn_disk::*;
use cairn_disk::reader::block_on;
use cairn_types::*;
fn main() {
    let root = tempfile::tempdir_in(std::env::args().nth(1).unwrap_or("/tmp".into())).unwrap();
    for d in ["a","b","c"] { std::fs::create_dir(root.path().join(d)).unwrap(); }
    let mut config = DevicesConfig::new(root.path());
    config.mount_check = false;
    if let Some(n) = std::env::args().nth(2) { config.write_threads = n.parse().unwrap(); }
    let devices = Devices::new(config);
    let hp = HashPath::new("", "endcap");
    let engine = Arc::new(DiskFileEngine::new(hp.clone(), DiskFileConfig::default()));
    let key = |i: usize| { let n = format!("o{i}"); let hash = hp.hash("a", Some("c"), Some(&n)); ObjectKey { policy: PolicyIndex(0), partition: hash.partition(32-10), hash, name: format!("/a/c/{n}").into() } };
    let body = Bytes::from(vec![7u8; 4096]);
    let etag = ObjectHash({use md5::Digest; md5::Md5::digest(&body).into()}).hex();
    let n = 6000usize; let inflight = 48;
    let t = Instant::now();
    let cpu = || { let s = std::fs::read_to_string("/proc/self/stat").unwrap(); let f: Vec<&str> = s.rsplit(')').next().unwrap().split_whitespace().collect(); (f[11].parse::<u64>().unwrap(), f[12].parse::<u64>().unwrap()) };
    let c0 = cpu();
    std::thread::scope(|s| for w in 0..inflight { let (devices, engine, body, etag) = (devices.clone(), engine.clone(), body.clone(), etag.clone()); let key=&key; s.spawn(move || for i in (w..n).step_by(inflight) {
        let runs: Vec<_> = ["a","b","c"].iter().map(|d| { let (engine, key, body) = (engine.clone(), key(i), body.clone()); let md: Metadata = [("X-Timestamp","4000000000.00000".to_string()),("Content-Type","text/plain".into()),("Content-Length","4096".into()),("ETag",etag.clone())].into_iter().collect();
            devices.get(d).unwrap().write(move |disk| { let r = engine.open(disk, &key, &OpenOptions::metadata(Timestamp::from_secs(4_000_000_000))); assert!(r.is_err()); engine.put_small(disk, &key, body, md) }) }).collect();
        for r in runs { block_on(r).unwrap(); }
    }); });
    let e = t.elapsed().as_secs_f64(); let c1 = cpu();
    println!("PUT x3: {:.0}/s  cpu user {} ms sys {} ms, per copy {} us", n as f64 / e, (c1.0-c0.0)*10, (c1.1-c0.1)*10, (c1.0+c1.1-c0.0-c0.1)*10_000/(3*n as u64));
    for round in 0..2 { for lane in [false] {
    let c0 = cpu(); let t = Instant::now(); let g = 60000usize;
    std::thread::scope(|s| for w in 0..8 { let (devices, engine) = (devices.clone(), engine.clone()); let key=&key; s.spawn(move || { let dev = devices.get("a").unwrap(); for i in (w..g).step_by(8) {
        let (engine, key) = (engine.clone(), key(i % n));
        let o = OpenOptions { now: Timestamp::from_secs(4_000_000_000), open_expired: false, inline_limit: 65536 };
        if lane { engine.open(&dev.disk().unwrap(), &key, &o).unwrap(); } else { block_on(dev.read(move |disk| engine.open(disk, &key, &o))).unwrap(); }
    }}); });
    let e = t.elapsed().as_secs_f64(); let c1 = cpu();
    println!("GET round {round}: {:.0}/s, cpu per op {} us", g as f64 / e, (c1.0+c1.1-c0.0-c0.1)*10_000/(g as u64)); } }
    let t = Instant::now(); let dev = devices.get("a").unwrap(); let disk = dev.disk().unwrap();
    let o = OpenOptions { now: Timestamp::from_secs(4_000_000_000), open_expired: false, inline_limit: 65536 };
    for i in 0..50000 { engine.open(&disk, &key(i % n), &o).unwrap(); }
    println!("GET direct single thread: {:.1} us", t.elapsed().as_secs_f64()*1e6/50000.0);
}
