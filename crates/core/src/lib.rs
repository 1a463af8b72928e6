//! The pure behaviour of the operator: [`decide::decide`] turns a resource and what was seen of
//! the world into steps and a status, [`schedule::Places`] says which runs may start, and
//! [`lease::Elector`] which replica decides at all. No client, no clock, no async.

pub mod absorb;
pub mod admission;
pub mod allow_list;
pub mod allowed;
pub mod approval;
pub mod base_image;
pub mod build;
pub mod decide;
pub mod delete;
pub mod digest;
pub mod events;
mod flapping;
mod hand_on;
pub mod image;
pub mod inputs;
pub mod lease;
mod leave;
pub mod leftovers;
pub mod metacontroller;
pub mod metrics;
pub mod model;
pub mod notices;
pub mod objects;
mod ongoing;
pub mod orphans;
pub mod progress;
pub mod references;
mod renew;
pub mod restore;
pub mod retry;
pub mod schedule;
pub mod seen;
pub mod settings;
pub mod signature;
pub mod stack;
pub mod start;
pub mod state_address;
mod state_volume;
pub mod status;
pub mod step;
mod unrecorded;
pub mod upstream;
mod want;
