//! The managed state of a run: opened, and served to the engine.

use std::sync::Arc;

use alustan_api::report::Failure;
use alustan_api::run::RunInputs;
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
        .map_err(|error| unreadable(&error))?;
    let server = StateServer::start(Arc::new(store), record.clone(), password());
    let server = server
        .await
        .map_err(|error| world("StateUnavailable", format!("state server: {error}")))?;
    Ok(Some(server))
}

fn unreadable(error: &StateError) -> Failure {
    match error {
        StateError::Corrupt(_) | StateError::Pointer(..) => user("StateDamaged", error.to_string()),
        StateError::Store(_) | StateError::Moved | StateError::NoRoom { .. } => {
            world("StateUnavailable", error.to_string())
        }
    }
}

fn password() -> String {
    let mut bytes = [0; 24];
    // Without random bytes nothing of a run could be trusted; ring then fails everywhere.
    let _ = SystemRandom::new().fill(&mut bytes);
    hex::encode(bytes)
}
