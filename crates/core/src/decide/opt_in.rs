//! Changes that may damage a state and need an opt-in in the spec: another engine, an older engine version, another location of the state
//! (rule 11).

use alustan_api::run::{BackendInputs, Failures, PinnedImage, RunInputs};
use alustan_api::{Reason, Terraform, engine};
use alustan_backends::{Migration, Since, migration};
use serde_json::json;

use crate::decide::case::ReconcileCase;
use crate::decide::restore;
use crate::model::state_slots::{managed_state, slots};
use crate::model::summary::{Summary, patch};

fn may_switch(tf: &Terraform) -> bool {
    tf.spec
        .engine
        .as_ref()
        .is_some_and(|engine| engine.allow_switch)
}

fn may_migrate(tf: &Terraform) -> bool {
    tf.spec
        .backend
        .as_ref()
        .is_some_and(|backend| backend.migrate)
}

/// Returns the summary if the engine in `base` is too old for the configuration of `backend`. `None` if the engine in `base` is unknown.
pub(super) fn engine_too_old(base: &PinnedImage, backend: &BackendInputs) -> Option<Summary> {
    let (engine, since) = (base.engine.as_ref()?, alustan_backends::since(backend)?);
    let is_too_old = engine::order(&engine.version, since.version).is_lt();
    is_too_old.then(|| {
        let Since { version, why } = since;
        let message = format!(
            "spec.engine: {engine} is too old for spec.backend: version {version} or later is \
             required for {why}"
        );
        Summary::stalled(Reason::EngineTooOld, message)
    })
}

/// Whether the last failure required an opt-in that the spec of `tf` now contains.
pub(super) fn is_opted_in(tf: &Terraform, failures: &Failures) -> bool {
    match Reason::from_stored(&failures.reason) {
        Some(Reason::EngineChangeNotAllowed) => may_switch(tf),
        Some(Reason::BackendChanged) => may_migrate(tf),
        _ => false,
    }
}

impl ReconcileCase<'_> {
    /// Returns the summary if the last apply used another engine than `base`, or a newer version of the engine, and
    /// `spec.engine.allowSwitch` is not true.
    pub(super) fn engine_change_refusal(&self, base: &PinnedImage) -> Option<Summary> {
        let (previous, next) = (self.history.engine.as_ref()?, base.engine.as_ref()?);
        let refusal = previous.refusal(next).filter(|_| !may_switch(self.tf))?;
        let allow = patch(self.tf, &json!({ "engine": { "allowSwitch": true } }));
        let pinned = json!({ "name": previous.name, "version": previous.version });
        let (field, keep) = match self.tf.spec.container_registry.base_image {
            Some(_) => (
                "spec.containerRegistry.baseImage",
                json!({ "engine": pinned, "containerRegistry": { "baseImage": null } }),
            ),
            None => ("spec.engine", json!({ "engine": pinned })),
        };
        let keep = patch(self.tf, &keep);
        let message = format!(
            "{field}: {refusal}; nothing is applied; to allow the change: {allow}; to keep the \
             previous engine: {keep}"
        );
        Some(Summary::stalled(Reason::EngineChangeNotAllowed, message))
    }

    /// Adds to `inputs` the engine of the last apply if the spec does not allow another engine, the time of a restore from a backup, and
    /// the previous backend if the runner must copy the state from it.
    ///
    /// # Errors
    ///
    /// Fails if the location of the state has changed without `spec.backend.migrate`.
    pub(super) fn check_opt_ins(&self, inputs: &mut RunInputs) -> Result<(), Summary> {
        let last_engine = self.history.engine.clone();
        inputs.engine_before = last_engine.filter(|_| !may_switch(self.tf));
        inputs.approval.restored = restore::restored_at(&self.history);
        inputs
            .approval
            .discarded
            .clone_from(&self.history.discarded);
        let Some(previous_backend) = self.applied_backend() else {
            return Ok(());
        };
        match (
            migration(&previous_backend, &inputs.backend),
            may_migrate(self.tf),
        ) {
            (Migration::No, _) | (Migration::Unknown, false) => Ok(()),
            (Migration::Yes | Migration::Unknown, true) => {
                inputs.migrate = Some(previous_backend);
                Ok(())
            }
            (Migration::Yes, false) => {
                Err(self.backend_changed(&previous_backend, &inputs.backend))
            }
        }
    }

    /// Returns the backend of the last apply, from the pin.
    fn applied_backend(&self) -> Option<BackendInputs> {
        let pin = self.seen.pin.as_ref()?;
        let pin = pin.of_what_exists(self.current.attempted);
        let exists = self.current.attempted > 0 && pin.number <= self.current.attempted;
        let mut backend = exists.then(|| pin.inputs.backend.clone())?;
        if let Some(managed) = &mut backend.managed {
            *managed = managed_state(
                self.tf.metadata.name.as_deref().unwrap_or_default(),
                slots(&self.current),
            );
        }
        Some(backend)
    }

    fn backend_changed(&self, from: &BackendInputs, to: &BackendInputs) -> Summary {
        let location_of = alustan_backends::location;
        let migrate = patch(self.tf, &json!({ "backend": { "migrate": true } }));
        let message = format!(
            "spec.backend: the state is in {}, but the configured location is {}; nothing is \
             applied, because an apply would create all objects a second time; to copy the state \
             first: {migrate}",
            location_of(from),
            location_of(to),
        );
        Summary::stalled(Reason::BackendChanged, message)
    }
}
