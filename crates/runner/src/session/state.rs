//! The managed state of a run: opened, and served to the engine.

use std::sync::Arc;

use alustan_api::ABANDON;
use alustan_api::report::Failure;
use alustan_api::run::{ManagedState, RunInputs};
use ring::rand::{SecureRandom, SystemRandom};

use crate::failure::{user, world};
use crate::record::Record;
use crate::secrets::Secrets;
use crate::state_server::{SlotsOfRecord, StateServer};
use crate::state_store::{StateError, StateStore};

/// The state server, where the state is managed.
pub(super) async fn start_server(
    inputs: &RunInputs,
    secrets: &Arc<dyn Secrets>,
    record: &Record,
) -> Result<Option<StateServer>, Failure> {
    let Some(managed) = &inputs.backend.managed else {
        return Ok(None);
    };
    let more = Arc::new(SlotsOfRecord(record.clone()));
    let (pointer, slots) = (managed.pointer.clone(), managed.slots.clone());
    let store = StateStore::open(secrets.clone(), pointer, slots, more)
        .await
        .map_err(|error| unreadable(&error, managed, &record.identity().namespace))?;
    let server = StateServer::start(Arc::new(store), record.clone(), password());
    let server = server
        .await
        .map_err(|error| world("StateUnavailable", format!("state server: {error}")))?;
    Ok(Some(server))
}

fn unreadable(error: &StateError, managed: &ManagedState, namespace: &str) -> Failure {
    let pointer = &managed.pointer;
    match error {
        StateError::Corrupt(_) | StateError::Pointer(..) => user("StateDamaged", error.to_string()),
        StateError::NoPointer(_) => {
            let empty = format!("kubectl create secret generic {pointer} -n {namespace}");
            lost(error, &empty)
        }
        StateError::NoSlot { .. } => {
            let patch = r#"--type merge -p '{"data":null}'"#;
            lost(
                error,
                &format!("kubectl patch secret {pointer} -n {namespace} {patch}"),
            )
        }
        StateError::Store(_) | StateError::Moved | StateError::NoRoom { .. } => {
            world("StateUnavailable", error.to_string())
        }
    }
}

/// State that is lost is not empty: with an empty one everything would be made a second time, and
/// nothing be destroyed. That is for a person to say, by the command that makes it `empty`.
fn lost(error: &StateError, empty: &str) -> Failure {
    user(
        "StateLost",
        format!(
            "{error}. Nothing was changed. Restore it from a backup; or, to begin with an empty \
             state on purpose, run `{empty}` (what exists then stays, and everything is made \
             again); or let go of everything with the annotation {ABANDON}: \"true\""
        ),
    )
}

fn password() -> String {
    let mut bytes = [0; 24];
    // Without random bytes nothing of a run could be trusted; ring then fails everywhere.
    let _ = SystemRandom::new().fill(&mut bytes);
    hex::encode(bytes)
}
