//! Task containers of expiring objects: which container of the account `.expiring_objects` queues
//! an object for the expirer (`swift/obj/expirer.py` upstream).

use crate::HashPath;

/// Number of task containers that the objects of one divisor (one day by default) are spread over.
const CONTAINERS_PER_DIVISOR: u128 = 100;

/// The name of the task container of an object that expires at `delete_at` (seconds).
pub fn task_container(
    hash_path: &HashPath,
    divisor: u64,
    delete_at: u64,
    account: &str,
    container: &str,
    object: &str,
) -> String {
    let hash = hash_path.hash(account, Some(container), Some(object));
    let shard = (u128::from_be_bytes(hash.0) % CONTAINERS_PER_DIVISOR) as u64;
    let at = (delete_at / divisor * divisor).saturating_sub(shard);
    format!("{at:010}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_day_less_a_shard() {
        let hash_path = HashPath::new("", "endcap");
        // md5("/a/c/o" + "endcap") mod 100 taken from its hex form.
        let name = task_container(&hash_path, 86_400, 86_400 * 3 + 5, "a", "c", "o");
        let shard = 0x06fb_f0b5_14e5_199d_fc4e_00f4_2eb5_ea83_u128 % 100;
        assert_eq!(name, format!("{:010}", 86_400 * 3 - shard));
    }
}
