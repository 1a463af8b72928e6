//! What the operator reports of a resource: status, events and notifications.

pub mod events;
pub mod notifications;
pub mod patch;
pub mod render;
