//! The configuration to apply: commit, run inputs, config hash and runner image; or the summary that reports why it is invalid, not allowed
//! or not known yet.

use alustan_api::report::{Failure, FailureClass};
use alustan_api::run::{BackendInputs, PinnedImage, RunInputs};
use alustan_api::{Reason, State};

use crate::decide::case::{RECHECK_INTERVAL, ReconcileCase};
use crate::decide::image_build::image_lookup;
use crate::decide::opt_in::engine_too_old;
use crate::model::config_hash::Config;
use crate::model::image::{self, ImagePlan};
use crate::model::summary::{self, Summary};
use crate::model::{
    base_image, cache_location, pod_options, run_inputs, state_conflict, state_slots,
};
use crate::observed::{Answer, SourceSeen};

/// The configuration to apply.
pub(super) struct Target {
    pub(super) source: SourceSeen,
    /// Runner image, or the summary that reports why the image is unknown.
    pub(super) runner: Result<Runner, Summary>,
    /// Digest of the configuration without the values of `spec.variablesFrom`, see [`Config::own_hash`].
    pub(super) own_hash: String,
    /// Inputs of the run, or the summary of the missing input. The image can be built while an input is missing.
    pub(super) wanted: Result<RunConfig, Summary>,
}

/// Base image, and the inputs of the build of the runner image.
#[derive(Clone)]
pub(super) struct Runner {
    pub(super) base: PinnedImage,
    pub(super) plan: ImagePlan,
}

/// Inputs of the run and their digests.
#[derive(Clone)]
pub(super) struct RunConfig {
    pub(super) inputs: RunInputs,
    pub(super) config: Config,
}

impl ReconcileCase<'_> {
    /// Returns the configuration to apply.
    ///
    /// # Errors
    ///
    /// Returns a summary if the configuration is invalid, not allowed or not known yet.
    pub(super) fn target(&self) -> Result<Target, Summary> {
        self.target_of(self.source())
    }

    /// Returns the configuration to apply with the commit and context in `source`.
    pub(super) fn target_of(&self, source: Result<SourceSeen, Summary>) -> Result<Target, Summary> {
        if let Some(invalid) = &self.seen.invalid {
            return Err(summary::configuration_failure(invalid));
        }
        let shared_claims = &self.seen.shared_claims;
        if let Some(violation) = image::settings_violation(self.tf, self.settings)
            .or_else(|| pod_options::refusal(self.tf, shared_claims, self.settings))
        {
            return Err(summary::configuration_failure(&violation));
        }
        if let Some(refusal) = self.cache_refusal() {
            return Err(refusal);
        }
        if let Some(refusal) = self.refusal {
            return Err(self.not_allowed(refusal));
        }
        let seen = self
            .seen
            .inputs
            .as_ref()
            .map_err(|incomplete| missing_input(&incomplete.failure))?;
        let source = source?;
        let base = self.base();
        let resolved_base = if base_image::is_selected(self.tf) {
            Some(base.clone()?.resolved)
        } else {
            None
        };
        let variables = &self.seen.stack.variables;
        let slots = state_slots::slots(&self.current);
        let mut inputs = run_inputs::run_inputs(
            self.tf,
            &source,
            seen,
            variables,
            slots,
            self.settings.max_timeout,
        )
        .map_err(|error| Summary::stalled(error.reason(), error.to_string()))?;
        if let Some(refused) = self.volume_lost(&inputs.backend) {
            return Err(refused);
        }
        let content = image::content(self.tf, &source, resolved_base.as_deref());
        let config = run_inputs::config(self.tf, &self.record.key, &content, &inputs, self.seen);
        if let Some(conflict) = self.conflict(&config.hash) {
            return Err(conflict);
        }
        self.check_opt_ins(&mut inputs)?;
        let missing = variables
            .missing
            .as_ref()
            .and_then(|_| self.missing_dependency());
        let runner = base.and_then(|base| self.runner(base, &inputs.backend));
        let own_hash = config.own_hash.clone();
        let wanted = missing.map_or(Ok(RunConfig { inputs, config }), Err);
        Ok(Target {
            source,
            runner,
            own_hash,
            wanted,
        })
    }

    /// Returns the summary of a cache volume that the resource cannot use. Requeues after the interval [`RECHECK_INTERVAL`], because the operator
    /// does not watch shared claims. A destroy does not need the volume.
    fn cache_refusal(&self) -> Option<Summary> {
        if self.tf.metadata.deletion_timestamp.is_some() {
            return None;
        }
        let claim = &self.seen.shared_claim;
        let refusal = cache_location::refusal(self.tf, claim, self.settings)?;
        let summary = match refusal.class {
            FailureClass::Transient => missing_input(&refusal),
            FailureClass::User | FailureClass::Module => summary::configuration_failure(&refusal),
        };
        Some(Summary {
            requeue_at: Some(self.now + RECHECK_INTERVAL),
            ..summary
        })
    }

    /// Returns the resolved base image; after a failed lookup, the last known base image.
    fn base(&self) -> Result<PinnedImage, Summary> {
        match &self.image.base {
            Answer::Known(base)
            | Answer::Failed {
                last: Some(base), ..
            } => Ok(base.clone()),
            Answer::Pending => Err(Summary::busy(
                State::Building,
                Reason::ImageLookup,
                "looking up the base image in the registry",
            )),
            Answer::Failed {
                failure,
                retry_at,
                last: None,
            } => Err(summary::query_failure(failure, *retry_at, self.now)),
        }
    }

    /// Returns the runner image, based on `base`.
    ///
    /// # Errors
    ///
    /// Fails if a change to the engine in `base` requires `spec.engine.allowSwitch`, if this engine is too old for the configuration of
    /// `backend`, or if the image plan is not known yet.
    fn runner(&self, base: PinnedImage, backend: &BackendInputs) -> Result<Runner, Summary> {
        let refused = self.engine_change_refusal(&base);
        if let Some(refused) = refused.or_else(|| engine_too_old(&base, backend)) {
            return Err(refused);
        }
        let plan = self.image.plan.clone().ok_or_else(image_lookup)?;
        Ok(Runner { base, plan })
    }

    /// Returns the summary of `refusal`, a violation of the allow lists. If the spec names `ServiceAccount`s, requeues after the interval
    /// [`RECHECK_INTERVAL`], because the operator does not watch ServiceAccounts.
    fn not_allowed(&self, refusal: &Failure) -> Summary {
        let summary = match refusal.class {
            FailureClass::Transient => missing_input(refusal),
            FailureClass::User | FailureClass::Module => summary::configuration_failure(refusal),
        };
        Summary {
            requeue_at: (!self.seen.accounts.is_empty()).then(|| self.now + RECHECK_INTERVAL),
            ..summary
        }
    }

    /// Returns the summary of a conflict: the state at the same address belongs to another resource. If the address comes from the report
    /// of the last run, ignores the conflict if that run had another config hash: the current configuration may have another state address.
    fn conflict(&self, hash: &str) -> Option<Summary> {
        let last_run = self.current.run.as_ref();
        let same_config = last_run.is_some_and(|run| run.config_hash == hash) && !self.has_moved();
        let address_counts = same_config || !state_conflict::is_address_reported(self.tf);
        let conflict = self.seen.conflict.as_ref().filter(|_| address_counts)?;
        Some(Summary {
            requeue_at: Some(self.now + RECHECK_INTERVAL),
            ..summary::configuration_failure(conflict)
        })
    }

    /// Whether the latest reported state address differs from the address in status, which may be older.
    fn has_moved(&self) -> bool {
        let mut reports = self.history.reports.iter();
        let reported = reports.find_map(|report| report.state_address.as_ref());
        let in_status = self
            .tf
            .status
            .as_ref()
            .map(|status| status.state_address.as_ref());
        reported.is_some() && in_status != Some(reported)
    }
}

/// Returns the summary of a missing object that the spec names. The summary has precedence over failures of repository and registry,
/// because missing credentials may cause these failures.
fn missing_input(failure: &Failure) -> Summary {
    Summary {
        state: State::Pending,
        ..summary::configuration_failure(failure)
    }
}
