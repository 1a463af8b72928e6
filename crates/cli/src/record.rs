//! Reads and writes the run record. The run record contains the lock of a managed state, which the commands `unlock` and `state push` change. Every
//! write requires the `resourceVersion` that was read.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use alustan_api::ObjectKey;
use alustan_api::run::{RunPhase, RunRecord, StateLock, key};
use alustan_api::{BackendProvider, Terraform, names};
use alustan_state::error_text::place_in_json;
use alustan_state::retry::{Patience, pause_between_tries};
use alustan_state::secrets::{Changes, KubeSecrets, Secrets, Snapshot, StoreError, to_json};
use kube::ResourceExt;
use serde_json::{Map, Value};

use crate::cluster::Cluster;
use crate::error::Error;

/// Maximum duration of a write, including its retries.
const PATIENCE: Duration = Duration::from_secs(30);

/// Result of the closure that the caller passes to [`RecordHandle::update`].
pub(crate) enum Update {
    /// The record is unchanged.
    Keep,
    /// The record must be written.
    Write,
}

/// Run record of a resource.
pub(crate) struct RecordHandle {
    /// Client for the Secrets in the namespace of the resource.
    pub(crate) secrets: Arc<dyn Secrets>,
    /// Namespace and name of the resource.
    pub(crate) key: ObjectKey,
}

impl RecordHandle {
    /// Creates a handle for the run record of `tf`. Sends no request.
    pub(crate) fn of(cluster: &Cluster, tf: &Terraform) -> Self {
        let secrets = KubeSecrets::for_people(cluster.client.clone(), &cluster.namespace);
        Self {
            secrets: Arc::new(secrets),
            key: cluster.key(&tf.name_any()),
        }
    }

    fn name(&self) -> String {
        names::record(&self.key.name)
    }

    /// Whether the backend of `tf` is `managed`. If `spec.backend.provider` is not set, reads the run record: the backend is `managed` if the Secrets
    /// of a managed state were created. A resource without a run also has the backend `managed`, so that users can push a local state before the
    /// first run.
    pub(crate) async fn is_managed(&self, tf: &Terraform) -> Result<bool, Error> {
        let provider = tf
            .spec
            .backend
            .as_ref()
            .and_then(|backend| backend.provider);
        match provider {
            Some(BackendProvider::Managed) => Ok(true),
            Some(_) => Ok(false),
            None => {
                let (record, _) = self.read().await?;
                Ok(record.state_made || record.number == 0)
            }
        }
    }

    /// Returns the field `data` of the Secret that contains the run report. Empty if the Secret cannot be read.
    pub(crate) async fn reported(&self) -> BTreeMap<String, Vec<u8>> {
        let report = self.secrets.read(&names::report(&self.key.name)).await;
        report.map(|secret| secret.data).unwrap_or_default()
    }

    /// Whether the run report or the run record contains an unsaved state. The next run writes the unsaved state to the backend before any other
    /// operation. Runners with a `PROTOCOL` version before 5 stored the unsaved state in the run record, newer runners in the run report.
    pub(crate) async fn has_unsaved_state(&self) -> Result<bool, Error> {
        for name in [self.name(), names::report(&self.key.name)] {
            match self.secrets.read(&name).await {
                Ok(secret) if secret.data.contains_key(key::LEFTOVER) => return Ok(true),
                Ok(_) | Err(StoreError::Missing(_)) => {}
                Err(source) => {
                    let what = format!("read Secret {name} of {}", self.key);
                    return Err(Error::Record { what, source });
                }
            }
        }
        Ok(false)
    }

    /// Reads the Secret with the run record. Returns the parsed run record and a snapshot of the Secret.
    pub(crate) async fn read(&self) -> Result<(RunRecord, Snapshot), Error> {
        let what = format!("read the run record of {}", self.key);
        let snapshot = match self.secrets.read(&self.name()).await {
            Err(StoreError::Missing(secret)) => {
                return Err(Error::Refused(format!(
                    "{} has no run record (Secret {secret}): no run has started yet",
                    self.key
                )));
            }
            other => other.map_err(|source| Error::Record { what, source })?,
        };
        let record = snapshot.data.get(key::RECORD).map(Vec::as_slice);
        let record = serde_json::from_slice(record.unwrap_or_default()).map_err(|error| {
            Error::Refused(format!(
                "cannot read the run record of {}: {}. Check that kubectl-alustan and the operator \
                 have the same version",
                self.key,
                place_in_json(&error)
            ))
        })?;
        Ok((record, snapshot))
    }

    /// Fails if a run pod of the resource has not ended: an active pod may access the state.
    pub(crate) async fn check_pods(&self, cluster: &Cluster) -> Result<(), Error> {
        let ObjectKey { namespace, name } = &self.key;
        let alive = cluster.living_pods(name).await?;
        match alive.first() {
            None => Ok(()),
            Some(pod) => Err(Error::Refused(format!(
                "pod {pod} of {} has not terminated and may access the state. Wait until it \
                 terminates: kubectl get pod {pod} -n {namespace} -o wide",
                self.key
            ))),
        }
    }

    /// Applies `change` to the run record, and retries on conflict. If the response of a write is lost, calls `change` again: then `change` must
    /// detect that the record already contains the change, and return [`Update::Keep`].
    pub(crate) async fn update(
        &self,
        mut change: impl FnMut(&mut RunRecord, &Snapshot) -> Result<Update, Error>,
    ) -> Result<RunRecord, Error> {
        let (patience, mut pauses) = (Patience::lasting(PATIENCE), pause_between_tries());
        let name = self.name();
        loop {
            let (before, snapshot) = self.read().await?;
            let mut record = before.clone();
            match change(&mut record, &snapshot)? {
                Update::Keep => return Ok(record),
                Update::Write => {}
            }
            let written = to_json(&merged(&snapshot, &before, &record));
            let changes = Changes::from([(key::RECORD.to_owned(), Some(written))]);
            let swapped = self.secrets.swap(&name, &snapshot.version, changes);
            match swapped.await {
                Ok(_) => return Ok(record),
                Err(error) if may_pass(&error) && !patience.is_over() => {
                    tokio::time::sleep(pauses.next().unwrap_or_default()).await;
                }
                Err(source) => {
                    let what = format!("write the run record of {}", self.key);
                    return Err(Error::Record { what, source });
                }
            }
        }
    }
}

/// Merges the fields that differ between `before` and `after` into the stored record. Keeps the fields of the stored record that this version does
/// not know, because a newer operator wrote them.
fn merged(secret: &Snapshot, before: &RunRecord, after: &RunRecord) -> Map<String, Value> {
    let fields = |json: &[u8]| serde_json::from_slice::<Map<_, _>>(json).unwrap_or_default();
    let stored = secret.data.get(key::RECORD).map(Vec::as_slice);
    let mut merged = fields(stored.unwrap_or_default());
    let (before, after) = (fields(&to_json(before)), fields(&to_json(after)));
    let changed = after
        .into_iter()
        .filter(|(name, value)| before.get(name) != Some(value));
    merged.extend(changed);
    merged
}

fn may_pass(error: &StoreError) -> bool {
    error.is_passing() || matches!(error, StoreError::Conflict(_))
}

/// Fails if the state is in use: a run is active, or the state is locked.
pub(crate) fn busy(key: &ObjectKey, record: &RunRecord) -> Result<(), Error> {
    let ObjectKey { namespace, name } = key;
    if record.number > 0 && record.phase != RunPhase::Recorded {
        return Err(Error::Refused(format!(
            "run {} of {key} is active ({:?}). Wait until it ends, and suspend the resource \
             so that no further run starts: kubectl alustan suspend {name} -n {namespace}",
            record.number, record.phase
        )));
    }
    match &record.lock {
        Some(lock) => Err(Error::Refused(format!(
            "the state of {key} is locked: {}. If the holder of the lock has terminated: kubectl \
             alustan unlock {name} {} -n {namespace}",
            describe_lock(lock),
            quoted(&lock.id)
        ))),
        None => Ok(()),
    }
}

/// Quotes `text` as an argument of a shell command.
pub(crate) fn quoted(text: &str) -> Cow<'_, str> {
    // `try_quote` fails only if `text` contains NUL. Lock ids contain no NUL.
    shlex::try_quote(text).unwrap_or(Cow::Borrowed("''"))
}

/// Formats operation, holder, time and id of a lock.
pub(crate) fn describe_lock(lock: &StateLock) -> String {
    format!(
        "{} by {} since {} (lock {})",
        lock.operation, lock.who, lock.at, lock.id
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::jiff::Timestamp;
    use rstest::rstest;

    fn record(number: i64, phase: RunPhase, locked: bool) -> RunRecord {
        let lock = StateLock {
            id: "l-1".into(),
            operation: "OperationTypeApply".into(),
            who: "alustan@web-apply-3".into(),
            at: Timestamp::UNIX_EPOCH,
        };
        RunRecord {
            number,
            phase,
            lock: locked.then_some(lock),
            ..RunRecord::default()
        }
    }

    #[test]
    fn lock_id_is_quoted_as_one_shell_word() {
        for id in ["a b", "x'; reboot; '", "$(reboot)", ""] {
            let command = format!("unlock web {} -n team", quoted(id));
            let words = ["unlock", "web", id, "-n", "team"].map(str::to_owned);
            assert_eq!(shlex::split(&command).unwrap(), words);
        }
        assert_eq!(quoted("a\0b"), "''");
    }

    #[rstest]
    #[case::no_run_yet(record(0, RunPhase::Starting, false), None)]
    #[case::recorded(record(3, RunPhase::Recorded, false), None)]
    #[case::starting(
        record(3, RunPhase::Starting, false),
        Some("run 3 of team/web is active (Starting)")
    )]
    #[case::reported(
        record(3, RunPhase::Reported, false),
        Some("run 3 of team/web is active (Reported)")
    )]
    #[case::locked(record(3, RunPhase::Recorded, true), Some("unlock web l-1 -n team"))]
    fn state_command_is_refused_while_a_run_or_lock_exists(
        #[case] record: RunRecord,
        #[case] wanted: Option<&str>,
    ) {
        let message = busy(&ObjectKey::new("team", "web"), &record)
            .err()
            .map(|error| error.to_string());
        match (&message, wanted) {
            (None, None) => {}
            (Some(message), Some(wanted)) => assert!(message.contains(wanted), "{message}"),
            _ => panic!("{message:?}"),
        }
    }

    #[test]
    fn unknown_fields_of_the_record_are_preserved() {
        let stored = br#"{"number": 3, "phase": "Recorded", "newer": {"a": 1}}"#;
        let secret = Snapshot {
            version: "1".into(),
            data: [(key::RECORD.to_owned(), stored.to_vec())].into(),
        };
        let before = record(3, RunPhase::Recorded, true);
        let mut after = before.clone();
        after.lock = None;
        after.state_made = true;
        let wanted = serde_json::json!({
            "number": 3, "phase": "Recorded", "newer": {"a": 1}, "lock": null, "stateMade": true,
        });
        assert_eq!(Value::Object(merged(&secret, &before, &after)), wanted);
    }
}
