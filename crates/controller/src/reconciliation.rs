//! Input of one reconcile of one resource.

use alustan_api::Terraform;
use alustan_api::report::Failure;

use crate::context::Context;
use crate::resource::Ref;

/// The resource of a reconcile, and the state shared by all reconciles.
pub(crate) struct Reconciliation<'a> {
    pub(crate) ctx: &'a Context,
    pub(crate) tf: &'a Terraform,
    pub(crate) resource: &'a Ref,
    /// Failure of parsing the stored resource, if it is unreadable.
    pub(crate) unreadable: Option<Failure>,
}
