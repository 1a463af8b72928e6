//! Lock of a state, and its holder.

use k8s_openapi::jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// Maximum length of the host name of a pod, in characters (<https://man7.org/linux/man-pages/man7/hostname.7.html>). The kubelet truncates
/// longer pod names to this length.
const MAX_HOST_LENGTH: usize = 63;

/// Lock of a state, with fields of the engine's lock info.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StateLock {
    /// Lock id of the engine.
    pub id: String,
    /// Operation that holds the lock. Example: `OperationTypeApply`.
    pub operation: String,
    /// Holder of the lock, as `user@host`.
    pub who: String,
    /// Time at which the lock was acquired.
    pub at: Timestamp,
}

impl StateLock {
    /// Returns the host in [`Self::who`].
    pub fn host(&self) -> &str {
        self.who
            .rsplit_once('@')
            .map_or(&self.who, |(_, host)| host)
    }

    /// Whether the pod with this name acquired the lock.
    pub fn is_of_pod(&self, pod: &str) -> bool {
        host_of_pod(pod) == self.host()
    }
}

/// Returns the host name of the pod `pod`.
fn host_of_pod(pod: &str) -> &str {
    let cut = pod.get(..pod.floor_char_boundary(MAX_HOST_LENGTH));
    cut.unwrap_or(pod).trim_end_matches(['-', '.'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lock_holder_is_identified_by_the_host_name_of_its_pod() {
        let lock = |who: &str| StateLock {
            id: "1".to_owned(),
            operation: String::new(),
            who: who.to_owned(),
            at: Timestamp::UNIX_EPOCH,
        };
        let pod = "web-apply-6-abcde";
        assert!(lock("alustan@web-apply-6-abcde").is_of_pod(pod));
        assert!(lock("@web-apply-6-abcde").is_of_pod(pod));
        assert!(!lock("alustan@web-apply-6-abcdf").is_of_pod(pod));
        let long = format!("{}-.{}", "n".repeat(61), "x".repeat(20));
        assert!(lock(&"n".repeat(61)).is_of_pod(&long));
    }
}
