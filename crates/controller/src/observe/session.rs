//! One reconcile of one resource.

use std::collections::HashSet;

use alustan_api::Terraform;
use alustan_api::report::Failure;
use parking_lot::Mutex;

use crate::context::Context;
use crate::remote::queries::Push;
use crate::resource::Ref;

/// Reads the inputs of one reconcile. Collects the queries that the resource uses, and keeps the push of its context until the reconcile
/// starts it.
pub(crate) struct Observer<'a> {
    pub(crate) cx: &'a Context,
    pub(crate) tf: &'a Terraform,
    pub(crate) who: &'a Ref,
    /// Failure of parsing the stored resource, if it is unreadable.
    pub(crate) unreadable: Option<Failure>,
    pub(super) used: Mutex<HashSet<String>>,
    pub(super) push: Mutex<Option<Push>>,
}
