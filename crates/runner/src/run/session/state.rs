//! Opens the managed state of a run and serves it to the engine.

use std::sync::Arc;

use alustan_api::labels::{COMPONENT, Component, NAME};
use alustan_api::report::Failure;
use alustan_api::run::RunInputs;
use alustan_api::{ABANDON, Reason};
use alustan_state::secrets::Secrets;
use alustan_state::store::{StateError, StateStore};
use ring::rand::{SecureRandom, SystemRandom};

use crate::failure::{transient, user};
use crate::record::{Identity, RecordHandle};
use crate::state::server::{SlotsOfRecord, StateServer};

/// Starts the HTTP server that serves a managed state to the engine. Returns `None` if the state is not managed.
pub(super) async fn start_server(
    inputs: &RunInputs,
    secrets: &Arc<dyn Secrets>,
    record: &RecordHandle,
) -> Result<Option<StateServer>, Failure> {
    let Some(store) = open_store(inputs, secrets, record).await? else {
        return Ok(None);
    };
    let server = StateServer::start(Arc::new(store), record.clone(), password()?);
    let server = server.await.map_err(|error| {
        let message = format!("failed to start the state server: {error}");
        transient(Reason::StateUnavailable, message)
    })?;
    Ok(Some(server))
}

/// Opens the managed state of `inputs`. Returns `None` if the state is not managed.
pub(super) async fn open_store(
    inputs: &RunInputs,
    secrets: &Arc<dyn Secrets>,
    record: &RecordHandle,
) -> Result<Option<StateStore>, Failure> {
    let Some(managed) = &inputs.backend.managed else {
        return Ok(None);
    };
    let slot_source = Arc::new(SlotsOfRecord(record.clone()));
    let (pointer, slots) = (managed.pointer.clone(), managed.slots.clone());
    let writer = record.identity().pod_uid.clone();
    StateStore::open(secrets.clone(), pointer, slots, slot_source, writer)
        .await
        .map(Some)
        .map_err(|error| unreadable(&error, record))
}

fn unreadable(error: &StateError, record: &RecordHandle) -> Failure {
    match error {
        StateError::Corrupt(_) | StateError::Pointer(..) => {
            user(Reason::StateDamaged, error.to_string())
        }
        StateError::NoPointer(_) | StateError::NoSlot { .. } => lost(error, record.identity()),
        StateError::Store(_) | StateError::Moved | StateError::NoRoom { .. } => {
            transient(Reason::StateUnavailable, error.to_string())
        }
    }
}

/// Returns the failure of a run whose managed state is lost. A lost state is not treated as empty: an apply would create every object again, and a
/// destroy would destroy none. Only the user can decide to start with an empty state, and must recreate the resource for that.
fn lost(error: &StateError, identity: &Identity) -> Failure {
    let (name, namespace) = (identity.resource(), &identity.namespace);
    let component = Component::State.as_str();
    user(
        Reason::StateLost,
        format!(
            "{error}. Nothing was changed. Restore the state from a backup. Or start with an empty \
             state; existing objects remain, and an apply creates them again: (1) save the Secrets, \
             which may contain an earlier version of the state: `kubectl get secrets -n \
             {namespace} -l {NAME}={name} -o json >{name}.json`; (2) `kubectl annotate tf {name} -n \
             {namespace} {ABANDON}=true`; (3) delete the resource; (4) `kubectl delete secrets -n \
             {namespace} -l {NAME}={name},{COMPONENT}={component}`; (5) create the resource again"
        ),
    )
}

fn password() -> Result<String, Failure> {
    let mut bytes = [0; 24];
    let filled = SystemRandom::new().fill(&mut bytes);
    filled.map_err(|_| {
        transient(
            Reason::RandomSourceUnavailable,
            "the operating system returned no random bytes for the password of the state server",
        )
    })?;
    Ok(hex::encode(bytes))
}
