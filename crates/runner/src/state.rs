//! States: their backends, owners, locks and outputs, the server of the managed state, and unsaved states.

pub mod backend;
pub mod bootstrap;
pub mod inventory;
pub mod lineage;
pub mod lock_info;
pub mod outputs;
pub mod server;
pub mod unsaved;
