use cairn_index::{ContainerRow, IndexConfig, NewDb};
use cairn_types::HashPath;

use super::*;

fn row(name: &str) -> ContainerRow {
    ContainerRow {
        name: name.into(),
        put_timestamp: "0000000002.00000".into(),
        delete_timestamp: "0".into(),
        object_count: 1,
        bytes_used: 5,
        deleted: false,
        storage_policy_index: 0,
    }
}

#[tokio::test]
async fn damage_goes_to_quarantine() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("sda")).unwrap();
    let pool = IndexPool::new(IndexConfig::new(folder.path()));
    let hash_path = HashPath::new("", "end");
    for account in ["sound", "damaged"] {
        let db = pool.account(&hash_path, "sda", "3", account);
        let new = NewDb::Account {
            account: account.into(),
            put_timestamp: "0000000001.00000".into(),
        };
        let rows = (0..300).map(|i| row(&format!("container-{i}"))).collect();
        db.merge_items(Some(new), rows).await.unwrap();
        while !pool.close_db(db.key()) {
            tokio::task::yield_now().await;
        }
    }
    let file = |account: &str| {
        let db = pool.account(&hash_path, "sda", "3", account);
        db.key().file(folder.path())
    };
    // The file's first pages are whole: only reading all of it shows the damage.
    let mut bytes = std::fs::read(file("damaged")).unwrap();
    let half = bytes.len() / 2;
    bytes[half..].fill(0x5a);
    std::fs::write(file("damaged"), bytes).unwrap();

    let section = Section::from_pairs(
        "account-auditor",
        &[
            ("mount_check", "no"),
            ("accounts_per_second", "0"),
            ("recon_cache_path", folder.path().to_str().unwrap()),
        ],
    );
    let config = DbAuditorConfig::read(&section, DbKind::Account).unwrap();
    let auditor = DbAuditor::new(config, pool.clone());
    let stats = auditor.pass().await;
    assert_eq!((stats.passes, stats.failures, stats.quarantined), (1, 1, 1));
    assert!(!file("damaged").exists());
    assert!(folder.path().join("sda/quarantined/accounts").is_dir());
    let told = auditor.recon.read();
    assert!(told["account_auditor_pass_completed"].is_number());
    assert!(told["account_audits_since"].as_f64().unwrap() > 0.0);
    assert_eq!(told["account_audits_passed"], 1);
    assert_eq!(told["account_audits_failed"], 1);
    let again = auditor.pass().await;
    assert_eq!((again.passes, again.failures), (1, 0));
    // Since the last hourly report, not since the last pass.
    assert_eq!(auditor.recon.read()["account_audits_passed"], 2);
}
