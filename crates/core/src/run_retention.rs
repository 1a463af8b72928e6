//! Retention of `TerraformRun`s in addition to `spec.history.runs`: records of deleted resources have a maximum age, and all records together
//! a maximum size, because the quota of etcd is 2 GiB by default.

use std::cmp::Reverse;
use std::collections::HashMap;

use alustan_api::ObjectKey;
use k8s_openapi::jiff::{SignedDuration, Timestamp};

/// Maximum number of records of a resource. Equal to the maximum of `spec.history.runs`, which deletes older records with each run, unless the
/// run record of the resource was lost.
const MAX_OF_RESOURCE: usize = 100;

/// Assumed size of a record without texts, in bytes.
const SHORTENED: u64 = 8 * 1024;

/// A record as the retention sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredRun {
    /// Namespace and name of the record.
    pub key: ObjectKey,
    /// Uid of the resource.
    pub resource: String,
    /// Whether the resource exists.
    pub has_resource: bool,
    /// End time of the last run that the record describes.
    pub written_at: Timestamp,
    /// Size of the record, in bytes. 0 if its texts are already removed.
    pub bytes: u64,
}

impl StoredRun {
    fn size(&self) -> u64 {
        if self.bytes == 0 {
            SHORTENED
        } else {
            self.bytes
        }
    }
}

/// Limits of the retention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunRetention {
    /// Time for which the records of a deleted resource are kept after its last run.
    pub keep_deleted: SignedDuration,
    /// Maximum size of all records, in bytes.
    pub max_bytes: u64,
}

/// Change of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Removal {
    /// Delete the record.
    Delete(ObjectKey),
    /// Remove changes, text of the plan, and log. Keep cause and result.
    RemoveTexts(ObjectKey),
}

impl RunRetention {
    /// Returns the changes that are due: deletes the records of deleted resources whose last run is too long ago, and the oldest records of a
    /// resource above [`MAX_OF_RESOURCE`]. Then removes the texts of the oldest records until all records together have at most
    /// [`Self::max_bytes`].
    pub fn due(self, mut runs: Vec<StoredRun>, now: Timestamp) -> Vec<Removal> {
        runs.sort_unstable_by_key(|run| Reverse(run.written_at));
        // Number of newer records of each resource, and the time of its last run.
        let mut newer: HashMap<String, (usize, Timestamp)> = HashMap::new();
        let mut bytes: u64 = 0;
        let mut due = Vec::new();
        for run in runs {
            let (count, last) = newer
                .entry(run.resource.clone())
                .or_insert((0, run.written_at));
            *count += 1;
            let is_expired = !run.has_resource && now.duration_since(*last) > self.keep_deleted;
            if is_expired || *count > MAX_OF_RESOURCE {
                due.push(Removal::Delete(run.key));
                continue;
            }
            bytes = bytes.saturating_add(run.size());
            if bytes > self.max_bytes && run.bytes > 0 {
                bytes = bytes - run.bytes + SHORTENED;
                due.push(Removal::RemoveTexts(run.key));
            }
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(name: &str, has_resource: bool, age: i64, bytes: u64) -> StoredRun {
        StoredRun {
            key: ObjectKey::new("team", name),
            resource: name.split('-').next().unwrap_or_default().to_owned(),
            has_resource,
            written_at: Timestamp::from_second(1_000_000 - age).unwrap(),
            bytes,
        }
    }

    fn due(runs: Vec<StoredRun>) -> Vec<String> {
        let retention = RunRetention {
            keep_deleted: SignedDuration::from_secs(100),
            max_bytes: 250_000,
        };
        retention
            .due(runs, Timestamp::from_second(1_000_000).unwrap())
            .into_iter()
            .map(|removal| match removal {
                Removal::Delete(key) => format!("delete {}", key.name),
                Removal::RemoveTexts(key) => format!("shorten {}", key.name),
            })
            .collect()
    }

    #[test]
    fn records_of_a_deleted_resource_expire_together_after_its_last_run() {
        let runs = vec![
            run("old-1", false, 900, 1),
            run("old-2", false, 101, 1),
            run("young-1", false, 900, 1),
            run("young-2", false, 99, 1),
            run("owned-1", true, 900, 1),
        ];
        assert_eq!(due(runs), ["delete old-2", "delete old-1"]);
    }

    #[test]
    fn texts_of_the_oldest_records_are_removed_first() {
        let runs = vec![
            run("oldest", true, 40, 100_000),
            run("newest", true, 10, 100_000),
            run("third", true, 30, 100_000),
            run("second", true, 20, 100_000),
            run("shortened", true, 50, 0),
        ];
        assert_eq!(due(runs), ["shorten third", "shorten oldest"]);
    }

    #[test]
    fn expired_records_use_no_space() {
        let runs = vec![
            run("expired", false, 200, 250_000),
            run("a", true, 300, 100_000),
            run("b", true, 400, 100_000),
        ];
        assert_eq!(due(runs), ["delete expired"]);
    }

    #[test]
    fn resource_has_at_most_100_records() {
        let runs = (0..102).map(|age| run(&format!("web-{age}"), true, age, 1));
        assert_eq!(due(runs.collect()), ["delete web-100", "delete web-101"]);
    }
}
