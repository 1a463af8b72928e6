//! `unlock`: releases a lock whose holder has terminated.

use alustan_api::ObjectKey;
use alustan_api::Terraform;
use alustan_api::run::RunRecord;
use clap::Args;

use crate::cluster::Cluster;
use crate::error::Error;
use crate::print;
use crate::record::{RecordHandle, Update, describe_lock, quoted};

/// Release the lock of a managed state. For other states, print the commands of the engine that release it.
#[derive(Debug, Args)]
pub(crate) struct Unlock {
    /// Name of the resource.
    name: String,
    /// Id of the lock, from `status.lock` or the error of the failed run.
    #[arg(value_name = "LOCK-ID")]
    lock: String,
}

impl Unlock {
    pub(crate) async fn run(&self, cluster: &Cluster) -> Result<(), Error> {
        let tf = cluster.resource(&self.name).await?;
        let record = RecordHandle::of(cluster, &tf);
        if !record.is_managed(&tf).await? {
            return Err(Error::Refused(elsewhere(&tf, &self.lock)));
        }
        record.check_pods(cluster).await?;
        let mut is_retry = false;
        let release = |stored: &mut RunRecord, _: &_| {
            let update = release(&record.key, stored, &self.lock, is_retry);
            is_retry = true;
            update
        };
        record.update(release).await?;
        print::line(&format!("lock {} of {} released", self.lock, record.key))
    }
}

/// Removes the lock `id` from `record`. `is_retry` is true if this command has already tried to remove the lock. A missing lock is then a
/// success: the first write may have succeeded although its response was lost.
fn release(
    key: &ObjectKey,
    record: &mut RunRecord,
    id: &str,
    is_retry: bool,
) -> Result<Update, Error> {
    match record.lock.take() {
        Some(lock) if lock.id == id => Ok(Update::Write),
        Some(lock) => Err(Error::Refused(format!(
            "the state of {key} is not locked with id {id}; current lock: {}",
            describe_lock(&lock)
        ))),
        None if is_retry => Ok(Update::Keep),
        None => Err(Error::Refused(format!("the state of {key} is not locked"))),
    }
}

/// Returns instructions for a state that is not managed: how to release its lock with commands of the engine.
fn elsewhere(tf: &Terraform, lock: &str) -> String {
    let status = tf.status.as_ref();
    let address = status.and_then(|status| status.state_address.as_deref());
    let source = tf.spec.module_source();
    let folder = source.map_or_else(String::new, |source| source.working_copy());
    format!(
        "the state of {} is not a managed state ({}), so the engine must release the lock. Make \
         sure that the holder of the lock has terminated. Then, in {folder}, with the credentials of the \
         backend: terraform init && terraform force-unlock {} \
         (the same commands exist in tofu)",
        ObjectKey::of(tf),
        address.unwrap_or("location not known yet"),
        quoted(lock)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use alustan_api::run::StateLock;
    use k8s_openapi::jiff::Timestamp;
    use rstest::rstest;

    #[rstest]
    #[case::same_id(Some("l-1"), false, true)]
    #[case::other_id(Some("l-2"), false, false)]
    #[case::no_lock(None, false, false)]
    #[case::released_by_earlier_attempt(None, true, true)]
    fn only_the_lock_with_the_given_id_is_released(
        #[case] held: Option<&str>,
        #[case] is_retry: bool,
        #[case] good: bool,
    ) {
        let lock = held.map(|id| StateLock {
            id: id.into(),
            operation: "OperationTypeApply".into(),
            who: "alustan@web-apply-3".into(),
            at: Timestamp::UNIX_EPOCH,
        });
        let mut record = RunRecord {
            lock,
            ..RunRecord::default()
        };
        let released = release(&ObjectKey::new("team", "web"), &mut record, "l-1", is_retry);
        assert_eq!(released.is_ok(), good);
    }
}
