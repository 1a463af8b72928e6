//! Changes that may damage a state and need an opt-in in the spec: another engine, an older engine version, another location of the state
//! (rule 11).

use alustan_api::run::{BackendInputs, Failures, PinnedImage, RunInputs};
use alustan_api::{Reason, Terraform, engine};
use alustan_backends::{Migration, Since, migration};
use serde_json::json;

use crate::decide::restore;
use crate::decide::run_inputs::{managed_state, slots};
use crate::model::case::ReconcileCase;
use crate::model::summary::{Summary, patch};

fn may_switch(tf: &Terraform) -> bool {
    tf.spec.engine.as_ref().is_some_and(|it| it.allow_switch)
}

fn may_migrate(tf: &Terraform) -> bool {
    tf.spec.backend.as_ref().is_some_and(|it| it.migrate)
}

/// Returns the summary if the known engine in `base` is too old for the configuration of `backend`.
pub(crate) fn engine_too_old(base: &PinnedImage, backend: &BackendInputs) -> Option<Summary> {
    let (found, since) = (base.engine.as_ref()?, alustan_backends::since(backend)?);
    let too_old = engine::order(&found.version, since.version).is_lt();
    too_old.then(|| {
        let Since { version, why } = since;
        let message = format!(
            "spec.engine: {found} is too old for spec.backend: version {version} or later is \
             required for {why}"
        );
        Summary::stalled(Reason::EngineTooOld, message)
    })
}

/// Whether the last failure required an opt-in that the spec of `tf` now contains.
pub(crate) fn is_given(tf: &Terraform, failures: &Failures) -> bool {
    match Reason::from_stored(&failures.reason) {
        Some(Reason::EngineChangeNotAllowed) => may_switch(tf),
        Some(Reason::BackendChanged) => may_migrate(tf),
        _ => false,
    }
}

impl ReconcileCase<'_> {
    /// Returns the summary if the last apply used another engine than the one in `base`, or a newer version of it.
    pub(crate) fn refuses_engine(&self, base: &PinnedImage) -> Option<Summary> {
        let (before, next) = (self.history.engine.as_ref()?, base.engine.as_ref()?);
        let why = before.refusal(next).filter(|_| !may_switch(self.tf))?;
        let allow = patch(self.tf, &json!({ "engine": { "allowSwitch": true } }));
        let wish = json!({ "name": before.name, "version": before.version });
        let (field, stay) = match self.tf.spec.container_registry.base_image {
            Some(_) => (
                "spec.containerRegistry.baseImage",
                json!({ "engine": wish, "containerRegistry": { "baseImage": null } }),
            ),
            None => ("spec.engine", json!({ "engine": wish })),
        };
        let stay = patch(self.tf, &stay);
        let message = format!(
            "{field}: {why}; nothing is applied; to allow the change: {allow}; to keep the \
             previous engine: {stay}"
        );
        Some(Summary::stalled(Reason::EngineChangeNotAllowed, message))
    }

    /// Adds to `inputs` what the runner checks or copies: the engine of the last apply unless a switch is allowed, the time of a restore,
    /// and the backend from which to migrate the state.
    ///
    /// # Errors
    ///
    /// Fails if the location of the state has changed without `spec.backend.migrate`.
    pub(crate) fn give_leave(&self, inputs: &mut RunInputs) -> Result<(), Summary> {
        let before = self.history.engine.clone();
        inputs.engine_before = before.filter(|_| !may_switch(self.tf));
        inputs.approval.restored = restore::at(&self.history);
        let Some(from) = self.backend_of_what_exists() else {
            return Ok(());
        };
        match (migration(&from, &inputs.backend), may_migrate(self.tf)) {
            (Migration::No, _) | (Migration::Unknown, false) => Ok(()),
            (Migration::Yes | Migration::Unknown, true) => {
                inputs.migrate = Some(from);
                Ok(())
            }
            (Migration::Yes, false) => Err(self.moved(&from, &inputs.backend)),
        }
    }

    /// Returns the backend of the last apply, from the pin.
    fn backend_of_what_exists(&self) -> Option<BackendInputs> {
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

    fn moved(&self, from: &BackendInputs, to: &BackendInputs) -> Summary {
        let location = alustan_backends::location;
        let migrate = patch(self.tf, &json!({ "backend": { "migrate": true } }));
        let message = format!(
            "spec.backend: the state is in {}, but the configured location is {}; nothing is \
             applied, because an apply would create all objects a second time; to copy the state \
             first: {migrate}",
            location(from),
            location(to),
        );
        Summary::stalled(Reason::BackendChanged, message)
    }
}
