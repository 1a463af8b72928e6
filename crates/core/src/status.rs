//! Status, events and notifications of a resource.

pub(crate) mod dependencies;
pub mod events;
pub mod notifications;
pub mod patch;
pub mod render;
pub mod short_lived;
