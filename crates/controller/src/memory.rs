//! In-memory state of a resource between two reconciles. Its loss causes only a few additional API calls, and may leave an unused run record.

use std::collections::{HashMap, VecDeque};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use alustan_api::report::Failure;
use alustan_api::{Terraform, TerraformStatus};
use alustan_core::backoff::doubled;
use alustan_core::observed::{SourceSeen, Waiting};
use k8s_openapi::jiff::Timestamp;
use parking_lot::Mutex;

use crate::resource::Ref;
use crate::wait_index::WaitIndex;

/// Number of created run records whose uids are kept.
const MAX_CREATED_RECORDS: usize = 1_000;

/// State that one process keeps per resource between two reconciles.
#[derive(Default)]
pub(crate) struct Memory {
    resources: Mutex<HashMap<Ref, ResourceState>>,
    /// Resources that wait for a build Job, by `NAMESPACE/NAME` of the Job.
    builds: Mutex<WaitIndex<Ref, String>>,
    /// Time of the first call of [`Memory::first_reconcile`].
    first_reconcile: OnceLock<Instant>,
    /// Uids of the last run records that this process created, oldest first, at most [`MAX_CREATED_RECORDS`].
    created_records: Mutex<VecDeque<String>>,
    /// Namespaces on which this process has set label `alustan.io/holds-state`, by name: uid of the namespace, and time of the write.
    labelled: Mutex<HashMap<String, (String, Instant)>>,
}

#[derive(Default)]
pub(crate) struct ResourceState {
    uid: Option<String>,
    /// Whether this process has observed the resource.
    is_observed: bool,
    /// Last written status, until the watch cache has it.
    status: Option<Box<WrittenStatus>>,
    /// Time since which a status that may be short-lived is not written.
    held_since: Option<Timestamp>,
    source: Option<(String, SourceSeen)>,
    /// Tag of the runner image that the resource needs, built or not.
    image_tag: Option<String>,
    /// Generation of the resource whose CEL expressions were checked, and the failure if an expression is invalid.
    expressions: Option<(Option<i64>, Option<Failure>)>,
    failures: u32,
    /// Number of consecutive conflicts.
    conflicts: u32,
    /// Name of the last Job that could not be created, and the cause.
    denied: Option<(String, Waiting)>,
    /// Whether a Secret of another owner has the name of the outputs Secret.
    outputs_taken: bool,
    published_events: HashMap<String, String>,
    /// Resource version of the last write of the run record by this process.
    record_version: Option<String>,
}

struct WrittenStatus {
    status: TerraformStatus,
    /// Resource version of the write. `None` if this process only reported the status, and another client writes it, or nobody.
    version: Option<u64>,
}

impl Memory {
    fn with_state<T>(&self, resource: &Ref, f: impl FnOnce(&mut ResourceState) -> T) -> T {
        let mut resources = self.resources.lock();
        f(resources.entry(resource.clone()).or_default())
    }

    /// Begins a reconcile of `resource`, which has this uid. Drops the state of an earlier resource of the same name.
    pub(crate) fn begin(&self, resource: &Ref, uid: Option<String>) {
        self.with_state(resource, |memory| {
            if memory.uid != uid {
                *memory = ResourceState {
                    uid,
                    ..ResourceState::default()
                };
            }
        });
    }

    /// Stores the uid of a run record that this process created.
    pub(crate) fn add_created_record(&self, uid: Option<String>) {
        let mut created = self.created_records.lock();
        created.extend(uid);
        let excess = created.len().saturating_sub(MAX_CREATED_RECORDS);
        created.drain(..excess);
    }

    /// Whether the Secret with `uid` is one of the last [`MAX_CREATED_RECORDS`] run records that this process created.
    pub(crate) fn created_record(&self, uid: &str) -> bool {
        let created = self.created_records.lock();
        created.iter().any(|created| created == uid)
    }

    /// Returns the time of the first reconcile by this process. The first call sets it.
    pub(crate) fn first_reconcile(&self) -> Instant {
        *self.first_reconcile.get_or_init(Instant::now)
    }

    /// Whether this process has observed `resource`.
    pub(crate) fn is_observed(&self, resource: &Ref) -> bool {
        let resources = self.resources.lock();
        resources
            .get(resource)
            .is_some_and(|memory| memory.is_observed)
    }

    /// Records an observation of `resource`. Returns whether it is the first one by this process.
    pub(crate) fn begin_observation(&self, resource: &Ref) -> bool {
        self.with_state(resource, |memory| {
            !std::mem::replace(&mut memory.is_observed, true)
        })
    }

    /// Returns the failure of an invalid CEL expression in the spec of `tf`. Checks the expressions once per generation.
    pub(crate) fn invalid_expression(&self, resource: &Ref, tf: &Terraform) -> Option<Failure> {
        let generation = tf.metadata.generation;
        let checked = self.with_state(resource, |memory| memory.expressions.clone());
        if let Some((checked_generation, failure)) = checked
            && checked_generation == generation
        {
            return failure;
        }
        let failure = alustan_cel::invalid_expression(&tf.spec);
        self.with_state(resource, |memory| {
            memory.expressions = Some((generation, failure.clone()));
        });
        failure
    }

    /// Returns the last written status of `resource`. `None` if the watch cache has this status or a later one.
    pub(crate) fn status(&self, resource: &Ref) -> Option<TerraformStatus> {
        self.with_state(resource, |memory| {
            let written = memory.status.as_deref()?;
            Some(written.status.clone())
        })
    }

    /// Stores the status of `resource` that was written. `version`: resource version of the write.
    pub(crate) fn set_status(&self, resource: &Ref, status: TerraformStatus, version: Option<u64>) {
        self.with_state(resource, |memory| {
            memory.status = Some(Box::new(WrittenStatus { status, version }));
        });
    }

    /// Drops the last written status of `resource` if the watch cache has it: `version` is the resource version of the resource in the
    /// watch cache. So the status of an idle resource is kept once.
    pub(crate) fn drop_watched_status(&self, resource: &Ref, version: u64) {
        self.with_state(resource, |memory| {
            let written = memory.status.as_deref().and_then(|written| written.version);
            if written.is_some_and(|written| written <= version) {
                memory.status = None;
            }
        });
    }

    /// Returns for how long the status of `resource` has been held back at `now`, since the first call after [`Self::release_status`].
    pub(crate) fn hold_status(&self, resource: &Ref, now: Timestamp) -> Duration {
        let since = self.with_state(resource, |memory| *memory.held_since.get_or_insert(now));
        Duration::try_from(now.duration_since(since)).unwrap_or_default()
    }

    /// Ends the time for which the status of `resource` has been held back.
    pub(crate) fn release_status(&self, resource: &Ref) {
        self.with_state(resource, |memory| memory.held_since = None);
    }

    /// Returns the last commit and context of `resource` if they were stored for the same `module`: repository, reference, path and included files.
    /// Reconciles use them while a new commit is fetched.
    pub(crate) fn source(&self, resource: &Ref, module: &str) -> Option<SourceSeen> {
        self.with_state(resource, |memory| {
            memory
                .source
                .as_ref()
                .filter(|(key, _)| key == module)
                .map(|(_, source)| source.clone())
        })
    }

    /// Returns the digests of the OCI artifacts that contain the contexts of all resources.
    pub(crate) fn artifacts(&self) -> Vec<String> {
        self.collect_all(|memory| Some(memory.source.as_ref()?.1.artifact.clone()))
    }

    /// Stores the tag of the runner image that `resource` needs.
    pub(crate) fn set_planned_image(&self, resource: &Ref, tag: &str) {
        self.with_state(resource, |memory| memory.image_tag = Some(tag.to_owned()));
    }

    /// Returns the tags of the runner images that resources need, built or not.
    pub(crate) fn planned_images(&self) -> Vec<String> {
        self.collect_all(|memory| memory.image_tag.clone())
    }

    fn collect_all<T>(&self, value: impl Fn(&ResourceState) -> Option<T>) -> Vec<T> {
        let resources = self.resources.lock();
        resources.values().filter_map(value).collect()
    }

    /// Drops commit and context of `resource`, for example because the latest commit cannot be used.
    pub(crate) fn forget_source(&self, resource: &Ref) {
        self.with_state(resource, |memory| memory.source = None);
    }

    /// Stores commit and context of `resource`. `module` identifies the module, see [`Self::source`].
    pub(crate) fn set_source(&self, resource: &Ref, module: &str, source: SourceSeen) {
        self.with_state(resource, |memory| {
            memory.source = Some((module.to_owned(), source));
        });
    }

    /// Counts a failed reconcile of `resource`. Returns the backoff, which doubles from 500 ms to 5 minutes.
    pub(crate) fn failed(&self, resource: &Ref) -> Duration {
        let failures = self.with_state(resource, |memory| {
            memory.failures = memory.failures.saturating_add(1);
            memory.failures
        });
        doubled(Duration::from_millis(500), failures, Duration::from_mins(5))
    }

    /// Counts a reconcile of `resource` that ended with a conflict. Returns the backoff, which doubles from 50 ms to 10 seconds. A watch
    /// event may requeue `resource` earlier.
    pub(crate) fn conflicted(&self, resource: &Ref) -> Duration {
        let conflicts = self.with_state(resource, |memory| {
            memory.conflicts = memory.conflicts.saturating_add(1);
            memory.conflicts
        });
        doubled(
            Duration::from_millis(50),
            conflicts,
            Duration::from_secs(10),
        )
    }

    /// Stores why Job `job` of `resource` could not be created.
    pub(crate) fn set_denied(&self, resource: &Ref, job: String, denial: Waiting) {
        self.with_state(resource, |memory| memory.denied = Some((job, denial)));
    }

    /// Returns the cause that [`Self::set_denied`] stored last for `resource`, if it was stored for Job `job`.
    pub(crate) fn denied(&self, resource: &Ref, job: &str) -> Option<Waiting> {
        self.with_state(resource, |memory| {
            let (last, denial) = memory.denied.as_ref()?;
            (last == job).then(|| denial.clone())
        })
    }

    /// Stores whether a Secret of another owner has the name of the outputs Secret of `resource`.
    pub(crate) fn set_outputs_taken(&self, resource: &Ref, taken: bool) {
        self.with_state(resource, |memory| memory.outputs_taken = taken);
    }

    /// Whether a Secret of another owner had the name of the outputs Secret of `resource`.
    pub(crate) fn outputs_taken(&self, resource: &Ref) -> bool {
        self.with_state(resource, |memory| memory.outputs_taken)
    }

    /// Stores the resource version of the run record of `resource` after a write by this process.
    pub(crate) fn set_record_version(&self, resource: &Ref, version: Option<String>) {
        self.with_state(resource, |memory| memory.record_version = version);
    }

    /// Returns the resource version of the last write of the run record of `resource` by this process.
    pub(crate) fn record_version(&self, resource: &Ref) -> Option<String> {
        self.with_state(resource, |memory| memory.record_version.clone())
    }

    /// Returns whether `text` differs from the text of the last event of `resource` with `reason`, so that the caller does not publish the same event
    /// again. Stores `text` as the text of the last event.
    pub(crate) fn is_new_event(&self, resource: &Ref, reason: &str, text: &str) -> bool {
        let entry = (reason.to_owned(), text.to_owned());
        self.with_state(resource, |memory| {
            memory.published_events.insert(entry.0, entry.1)
        })
        .is_none_or(|previous| previous != text)
    }

    /// Resets the backoff of `resource` after a successful reconcile.
    pub(crate) fn succeeded(&self, resource: &Ref) {
        self.with_state(resource, |memory| {
            (memory.failures, memory.conflicts) = (0, 0);
        });
    }

    /// Registers `resource` as waiting for the build `job`, and for no other build. Several resources may wait for one build.
    pub(crate) fn wait_for_build(&self, job: String, resource: &Ref) {
        self.builds.lock().set(resource, Some(job));
    }

    /// Returns the resources that wait for the build `job`.
    pub(crate) fn waiting_for_build(&self, job: &String) -> Vec<Ref> {
        let builds = self.builds.lock();
        builds.for_target(job).cloned().collect()
    }

    /// Stores that namespace `name` with this `uid` has label `alustan.io/holds-state`.
    pub(crate) fn set_labelled(&self, name: &str, uid: String) {
        let mut labelled = self.labelled.lock();
        labelled.insert(name.to_owned(), (uid, Instant::now()));
    }

    /// Whether this process has labelled namespace `name` with this `uid` within `max_age`.
    pub(crate) fn is_labelled(&self, name: &str, uid: &str, max_age: Duration) -> bool {
        let labelled = self.labelled.lock();
        let is_recent =
            |(labelled_uid, at): &(String, Instant)| labelled_uid == uid && at.elapsed() < max_age;
        labelled.get(name).is_some_and(is_recent)
    }

    /// Drops the entry of namespace `name`, because its label may be removed.
    pub(crate) fn forget_label(&self, name: &str) {
        self.labelled.lock().remove(name);
    }

    /// Drops all state of `resource`, which is deleted.
    pub(crate) fn forget(&self, resource: &Ref) {
        self.resources.lock().remove(resource);
        self.builds.lock().set(resource, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_status_is_dropped_once_the_watch_has_it() {
        let (memory, web) = (Memory::default(), Ref::new("web").within("team"));
        let is_kept_at = |written: Option<u64>, watched: u64| {
            memory.set_status(&web, TerraformStatus::default(), written);
            memory.drop_watched_status(&web, watched);
            memory.status(&web).is_some()
        };
        assert!(is_kept_at(Some(8), 7));
        assert!(!is_kept_at(Some(8), 8));
        assert!(!is_kept_at(Some(8), 9));
        assert!(is_kept_at(None, 9), "another client writes the status");
    }

    #[test]
    fn label_of_a_namespace_is_known_for_a_limited_time() {
        let memory = Memory::default();
        let is_labelled = |uid: &str| memory.is_labelled("team", uid, Duration::MAX);
        assert!(!is_labelled("1"));
        memory.set_labelled("team", "1".to_owned());
        assert!(is_labelled("1"));
        assert!(!is_labelled("2"), "a namespace created again");
        memory.forget_label("team");
        assert!(!is_labelled("1"));
        memory.set_labelled("team", "1".to_owned());
        assert!(!memory.is_labelled("team", "1", Duration::ZERO));
    }
}
