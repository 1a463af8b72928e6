//! Ownership of the state of a run (rule 11), checked before planning.

use std::time::Instant;

use alustan_api::Reason;
use alustan_api::report::{Failure, RunResult};
use alustan_api::run::Lineage;
use alustan_backends::is_known;
use alustan_state::store::Version;

use super::outcome::{Ended, Findings};
use crate::failure::{RunStep, module, place_in_json, user};
use crate::plan;
use crate::run::session::{READ_TIMEOUT, Session};
use crate::state::lineage::{Owner, StateHead, owner};
use crate::state::{backend, unsaved};

/// State of the module at the start of a run, and its owner.
pub(super) struct StateOwnership {
    /// Lineage, serial and item count of the state. `None` if the runner did not read the state because the state is known to belong to the
    /// resource, or if the runner cannot read the state.
    head: Option<StateHead>,
    owner: Owner,
}

impl StateOwnership {
    /// Whether the state belongs to another owner and this resource adopts the state.
    pub(super) fn is_taken_over(&self) -> bool {
        self.owner == Owner::Foreign
    }
}

impl Session {
    /// Determines the owner of the state. Fails if the state belongs to another owner, unless the resource adopts the state.
    pub(super) async fn check_state_owner(&self) -> Result<StateOwnership, Ended> {
        match self.head_if_unsure().await? {
            Some(head) => Ok(self.state_of(head)?),
            None => Ok(StateOwnership {
                head: None,
                owner: Owner::ThisResource,
            }),
        }
    }

    fn state_of(&self, head: StateHead) -> Result<StateOwnership, Failure> {
        // Even if the run record was lost, a managed state belongs to this resource: no other resource writes the state.
        let proven = self.inputs.applied_before || self.server.is_some();
        let owner = owner(&self.claimed.lineage, proven, &head);
        if owner == Owner::Unowned && self.has_migrated_away(&head) {
            return Err(self.migrated_away());
        }
        let refused = self.destroys() || !self.inputs.adopt;
        if owner == Owner::Foreign && refused {
            return Err(self.not_ours(&head));
        }
        let head = Some(head);
        Ok(StateOwnership { head, owner })
    }

    /// Checks, before objects change, the owner of a state that was not read at the start of the run. Compares the lineage in the plan file
    /// with the lineage in the run record, and reads the state if the lineages differ.
    pub(super) async fn recheck_state_owner(
        &self,
        state: &mut StateOwnership,
    ) -> Result<(), Failure> {
        if state.head.is_some()
            || self.server.is_some()
            || !backend::has_resolved(self.engine_directory())
        {
            return Ok(());
        }
        let planned = plan::file::lineage(&self.paths.plan_file()).map(Lineage::Of);
        if planned.is_none_or(|planned| planned != self.claimed.lineage)
            && let Some(head) = self.pull_if_possible().await?
        {
            *state = self.state_of(head)?;
        }
        Ok(())
    }

    /// Reads lineage, serial and item count of the state. Returns `None` if an earlier run recorded that the state belongs to the resource,
    /// if `init` resolved no backend, or if the state cannot be read and `scripts.init` is configured.
    async fn head_if_unsure(&self) -> Result<Option<StateHead>, Failure> {
        let known = match &self.claimed.lineage {
            Lineage::Of(lineage) => Some(lineage),
            Lineage::Unknown | Lineage::Lost | Lineage::New => None,
        };
        if let Some(server) = &self.server {
            let version = server.store().version().await;
            let lineage = version.and_then(|version| version.lineage);
            if known.is_some() && lineage.as_ref() == known {
                return Ok(None);
            }
            let state = server.store().get().await;
            return read(state.as_deref().map_or(&[], Vec::as_slice)).map(Some);
        }
        let current_address = self.state_address().filter(|address| is_known(address));
        let seen_here = known.is_some()
            && current_address.is_some()
            && self.claimed.state_address == current_address;
        if seen_here || !backend::has_resolved(self.engine_directory()) {
            return Ok(None);
        }
        self.pull_if_possible().await
    }

    async fn pull_if_possible(&self) -> Result<Option<StateHead>, Failure> {
        match self.pull().await {
            // `scripts.init` may configure a backend from which the engine cannot pull the state. The run then continues as if the state
            // belonged to this resource.
            Err(failure) if self.scripts.init.is_some() => {
                crate::log!(
                    "cannot determine the owner of the state: {}",
                    failure.message
                );
                Ok(None)
            }
            pulled => pulled.map(Some),
        }
    }

    pub(super) async fn pull(&self) -> Result<StateHead, Failure> {
        read(&self.pulled().await?)
    }

    /// Returns the state in the backend. Empty without a state.
    pub(super) async fn pulled(&self) -> Result<Vec<u8>, Failure> {
        let arguments = vec!["state".into(), "pull".into()];
        self.engine_output(RunStep::Pull, arguments, Instant::now() + READ_TIMEOUT)
            .await
    }

    /// Returns lineage and serial of the state for the id of a plan. Returns empty values if the state cannot be read.
    pub(super) async fn head_for_id(&self, state: &StateOwnership) -> StateHead {
        if let Some(server) = &self.server {
            let version = server.store().version().await;
            return version.map(head_of).unwrap_or_default();
        }
        if let Some(head) = &state.head {
            return head.clone();
        }
        match self.pull().await {
            Ok(head) => head,
            Err(failure) => {
                crate::log!(
                    "the plan id does not include lineage and serial, because the state cannot be \
                     read: {}",
                    failure.message
                );
                StateHead::default()
            }
        }
    }

    /// Returns the lineage to write into the run report when objects start to change.
    pub(super) fn lineage_to_note(&self, state: &StateOwnership) -> Lineage {
        let lineage = state.head.as_ref().and_then(|head| head.lineage.clone());
        match (state.owner, lineage, &self.claimed.lineage) {
            (Owner::Unowned, ..)
            | (Owner::ThisResource, None, Lineage::Unknown | Lineage::Lost) => Lineage::New,
            (Owner::ThisResource | Owner::Foreign, Some(lineage), _) => Lineage::Of(lineage),
            (Owner::ThisResource | Owner::Foreign, None, known) => known.clone(),
        }
    }

    /// Returns the lineage of the state at the end of a run, if the state belongs to the resource. Sends no request: returns `None` if the
    /// run has not read a lineage and the run record contains none. An adopted state belongs to the resource after a successful run, even if
    /// the run changed nothing, but not after a speculative plan.
    pub(super) async fn lineage_of_ours(
        &self,
        state: &StateOwnership,
        result: Option<RunResult>,
    ) -> Option<String> {
        let applied = matches!(result, Some(RunResult::Done | RunResult::NoChanges));
        if state.is_taken_over() && (!applied || self.is_speculative()) {
            return None;
        }
        match &self.server {
            Some(server) => server.store().version().await?.lineage,
            None => self.lineage_noted(state),
        }
    }

    fn lineage_noted(&self, state: &StateOwnership) -> Option<String> {
        let head = state.head.as_ref().filter(|head| head.item_count > 0);
        match (head, &self.claimed.lineage) {
            (Some(head), _) => head.lineage.clone(),
            (None, Lineage::Of(lineage)) if state.owner == Owner::ThisResource => {
                Some(lineage.clone())
            }
            (None, Lineage::Of(_) | Lineage::New | Lineage::Lost | Lineage::Unknown) => None,
        }
    }

    /// Determines the lineage of a state that belongs to the resource, but whose lineage is not recorded yet ([`Lineage::New`]). While no
    /// lineage is recorded, runs treat every state at the address as the state of this resource, even a state that another owner created.
    ///
    /// `pulled`: head of the state at the end of the run, if the run read it already.
    pub(super) async fn record_new_lineage(
        &self,
        state: &StateOwnership,
        pulled: Option<StateHead>,
        findings: &mut Findings,
    ) {
        let began = findings.began;
        let noted = if began {
            self.lineage_to_note(state)
        } else {
            self.claimed.lineage.clone()
        };
        let unsaved = self.engine_directory().join(unsaved::FILE).is_file();
        if noted != Lineage::New || unsaved || self.was_refused() {
            return;
        }
        let head = if began && pulled.is_some() {
            pulled
        } else if began {
            self.head_now().await
        } else {
            state.head.clone()
        };
        if let Some(head) = head {
            findings.lineage = head.lineage.filter(|_| began);
            findings.stateless = findings.lineage.is_none();
        }
    }

    async fn head_now(&self) -> Option<StateHead> {
        if let Some(server) = &self.server {
            let version = server.store().version().await;
            return Some(version.map(head_of).unwrap_or_default());
        }
        if !backend::has_resolved(self.engine_directory()) {
            return None;
        }
        let pulled = self.pull().await;
        pulled
            .inspect_err(|failure| crate::log!("failed to read the state: {}", failure.message))
            .ok()
    }

    fn ownership_advice(&self) -> String {
        if self.destroys() {
            return "Nothing was destroyed. Restore the state of this resource. To delete the \
                    resource without destroying its objects, set spec.deletionPolicy: Orphan"
                .to_owned();
        }
        let identity = self.record.identity();
        let (name, namespace) = (identity.resource(), &identity.namespace);
        format!(
            "Nothing was changed. Set another state location for this resource, or set \
             spec.backend.adopt: true to adopt this state; the first plan then waits for approval: \
             kubectl patch tf {name} -n {namespace} --type merge -p \
             '{{\"spec\":{{\"backend\":{{\"adopt\":true}}}}}}'"
        )
    }

    fn not_ours(&self, head: &StateHead) -> Failure {
        let place = self
            .state_address()
            .unwrap_or_else(|| "its backend".to_owned());
        let lineage = head.lineage.as_deref().unwrap_or_default();
        let whose = match &self.claimed.lineage {
            Lineage::Of(ours) => format!("the state of this resource has lineage {ours}"),
            Lineage::Lost => {
                "the owner of the state is unknown because the run record was deleted".to_owned()
            }
            Lineage::Unknown | Lineage::New => {
                "the state existed before the first apply of this resource".to_owned()
            }
        };
        let way_out = self.ownership_advice();
        let item_count = head.item_count;
        user(
            Reason::StateOwnershipConflict,
            format!(
                "the state at {place} has lineage {lineage} and {item_count} resources and outputs, \
                 but {whose}. {way_out}"
            ),
        )
    }
}

fn head_of(version: Version) -> StateHead {
    StateHead {
        lineage: version.lineage,
        serial: version.serial,
        item_count: 0,
    }
}

pub(super) fn read(state: &[u8]) -> Result<StateHead, Failure> {
    StateHead::read(state).map_err(|error| {
        let place = place_in_json(&error);
        module(
            Reason::StateUnreadable,
            format!("failed to read the state: {place}"),
        )
    })
}
