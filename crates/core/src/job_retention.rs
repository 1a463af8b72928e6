//! Retention of the finished Jobs of runs, which exist for `kubectl logs` only: at most [`KEPT_PER_RESOURCE`] per resource, and at most
//! `--keep-jobs` in total.

use std::collections::{HashMap, HashSet};

use alustan_api::ObjectKey;
use k8s_openapi::jiff::Timestamp;

/// Maximum number of finished run Jobs of one resource.
pub const KEPT_PER_RESOURCE: usize = 3;

/// Maximum number of Jobs that one [`JobRetention::mark`] adds to the marked Jobs.
pub const MAX_MARKED_PER_PASS: usize = 50;

/// A finished Job of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FinishedJob {
    /// Uid of the Job.
    pub uid: String,
    /// The resource.
    pub owner: ObjectKey,
    /// Creation time of the Job.
    pub created_at: Timestamp,
}

/// Marks finished Jobs beyond the total limit for deletion. The marks are an input of the decision about each resource, which deletes the
/// marked Jobs of that resource.
#[derive(Debug)]
pub struct JobRetention {
    limit: usize,
    marked: HashSet<String>,
}

impl JobRetention {
    /// Creates a retention without marks. `limit`: maximum number of finished run Jobs of all resources.
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            marked: HashSet::new(),
        }
    }

    /// Whether `finished` run Jobs of all resources exceed the limit.
    pub fn is_exceeded_by(&self, finished: usize) -> bool {
        finished > self.limit
    }

    /// Whether the Job with this uid is marked for deletion.
    pub fn is_marked(&self, uid: &str) -> bool {
        self.marked.contains(uid)
    }

    /// Marks the Jobs of `finished` beyond the limit: first all Jobs but the newest of each resource, then the newest ones, in both cases the
    /// oldest first. Adds at most [`MAX_MARKED_PER_PASS`] marks, and removes the marks of all other Jobs. Returns the newly marked Jobs. A
    /// marked Job that its resource still needs stays marked and counts towards the limit, so it is not replaced by the mark of another Job.
    pub fn mark(&mut self, mut finished: Vec<FinishedJob>) -> Vec<FinishedJob> {
        let excess = finished.len().saturating_sub(self.limit);
        if excess == 0 {
            self.marked.clear();
            return Vec::new();
        }
        let newest = newest_by_owner(&finished);
        finished.sort_by_cached_key(|job| {
            let is_newest = newest.contains(&job.uid);
            (is_newest, job.created_at, job.uid.clone())
        });
        finished.truncate(excess);
        let (known, new): (Vec<_>, Vec<_>) = finished
            .into_iter()
            .partition(|job| self.marked.contains(&job.uid));
        let new: Vec<_> = new.into_iter().take(MAX_MARKED_PER_PASS).collect();
        self.marked = known
            .into_iter()
            .chain(new.iter().cloned())
            .map(|job| job.uid)
            .collect();
        new
    }
}

/// Returns the uid of the newest Job of each resource.
fn newest_by_owner(jobs: &[FinishedJob]) -> HashSet<String> {
    let mut newest: HashMap<&ObjectKey, &FinishedJob> = HashMap::new();
    for job in jobs {
        let known = newest.entry(&job.owner).or_insert(job);
        if (known.created_at, &known.uid) < (job.created_at, &job.uid) {
            *known = job;
        }
    }
    newest.into_values().map(|job| job.uid.clone()).collect()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::jiff::SignedDuration;

    use super::*;

    /// Returns the Job that run `number` of resource `owner` has created `number` hours after the epoch.
    fn job(owner: &str, number: i64) -> FinishedJob {
        FinishedJob {
            uid: format!("{owner}-{number}"),
            owner: ObjectKey::new("team", owner),
            created_at: Timestamp::UNIX_EPOCH + SignedDuration::from_hours(number),
        }
    }

    fn uids(jobs: Vec<FinishedJob>) -> Vec<String> {
        jobs.into_iter().map(|job| job.uid).collect()
    }

    #[test]
    fn no_job_is_marked_up_to_the_limit() {
        let mut retention = JobRetention::new(3);
        let jobs = vec![job("web", 1), job("web", 2), job("db", 3)];
        assert_eq!(retention.mark(jobs), []);
    }

    #[test]
    fn newest_job_of_each_resource_is_marked_last() {
        let jobs = || {
            vec![
                job("db", 1),
                job("web", 2),
                job("web", 3),
                job("web", 6),
                job("app", 4),
                job("app", 5),
            ]
        };
        let marked = |limit| uids(JobRetention::new(limit).mark(jobs()));
        assert_eq!(marked(4), ["web-2", "web-3"]);
        assert_eq!(marked(3), ["web-2", "web-3", "app-4"]);
        assert_eq!(marked(1), ["web-2", "web-3", "app-4", "db-1", "app-5"]);
        assert_eq!(marked(0).len(), 6);
    }

    #[test]
    fn one_pass_marks_a_bounded_number_of_jobs() {
        let jobs: Vec<_> = (0..1_000)
            .map(|number| job(&format!("web{number}"), number))
            .collect();
        let mut retention = JobRetention::new(500);
        for pass in 1..=10 {
            assert_eq!(retention.mark(jobs.clone()).len(), MAX_MARKED_PER_PASS);
            let marked = jobs.iter().filter(|job| retention.is_marked(&job.uid));
            assert_eq!(marked.count(), pass * MAX_MARKED_PER_PASS);
        }
        assert_eq!(retention.mark(jobs.clone()), []);
        assert!(retention.is_marked("web0-0") && !retention.is_marked("web500-500"));
    }

    #[test]
    fn kept_marked_job_causes_no_further_marks() {
        let mut retention = JobRetention::new(1);
        let pending_plan = job("web", 1);
        let marked = retention.mark(vec![pending_plan.clone(), job("db", 2), job("app", 3)]);
        assert_eq!(uids(marked), ["web-1", "db-2"]);
        let rest = vec![pending_plan, job("app", 3)];
        assert_eq!(retention.mark(rest), []);
        assert!(retention.is_marked("web-1") && !retention.is_marked("app-3"));
    }

    #[test]
    fn mark_is_removed_when_the_limit_is_no_longer_exceeded() {
        let mut retention = JobRetention::new(1);
        retention.mark(vec![job("web", 1), job("db", 2)]);
        assert!(retention.is_marked("web-1"));
        retention.mark(vec![job("web", 1)]);
        assert!(!retention.is_marked("web-1"));
    }
}
