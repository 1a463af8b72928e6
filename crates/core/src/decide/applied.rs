//! Whether a configuration is applied, and whether runs with it have failed.

use alustan_api::run::{Applied, RunKind, Trigger};

use crate::decide::case::ReconcileCase;
use crate::decide::{approval, publish_outputs};
use crate::model::{approval_policy, pod_options};

impl ReconcileCase<'_> {
    /// Whether configuration `hash` is current ([`Self::is_current`]), and a run of this kind and trigger only checks for drift or restores
    /// the configuration. The run then does not change condition `Ready`.
    pub(super) fn keeps_ready(&self, kind: RunKind, trigger: &Trigger, hash: &str) -> bool {
        let keeps_configuration = matches!(
            trigger,
            Trigger::Drift | Trigger::Outputs | Trigger::Pin | Trigger::Approval { .. }
        );
        (kind == RunKind::Drift || keeps_configuration) && self.is_current(hash)
    }

    /// Whether the last apply had config hash `hash`, and no run with this hash has failed since.
    pub(super) fn is_applied(&self, hash: &str) -> bool {
        self.applied(hash).is_some() && !self.has_failed(hash)
    }

    /// Returns the last apply if it had config hash `hash`. `None` after a later apply that did not complete, because its changes are
    /// unknown.
    pub(super) fn applied(&self, hash: &str) -> Option<&Applied> {
        self.history
            .applied
            .as_ref()
            .filter(|applied| applied.config_hash == hash && !self.history.unfinished)
    }

    pub(super) fn has_failed(&self, hash: &str) -> bool {
        let failures = &self.history.failures;
        failures.of == self.failure_key(hash) && failures.at.is_some()
    }

    /// Returns the key under which failures with config hash `hash` are counted. If the last failure was a failed publication of outputs
    /// with this hash, returns the key for publications; otherwise, returns the key for runs.
    pub(super) fn failure_key(&self, hash: &str) -> String {
        let policy_digest = approval_policy::policy_digest(self.tf, false);
        let run_key = pod_options::with_digest(
            approval::failure_key(hash, &policy_digest),
            &self.pod_digest(false),
        );
        let outputs_key = publish_outputs::failure_key(&run_key, self.tf);
        if self.history.failures.of == outputs_key {
            outputs_key
        } else {
            run_key
        }
    }
}
