//! One reconcile of one resource.

use std::collections::HashSet;

use alustan_api::Terraform;
use alustan_api::report::Failure;
use parking_lot::Mutex;

use crate::context::Context;
use crate::remote::queries::Push;
use crate::resource::Ref;

/// Reads of one reconcile. Collects the queries that the resource uses, and holds the push of its context.
pub(crate) struct Observer<'a> {
    pub(crate) cx: &'a Context,
    pub(crate) tf: &'a Terraform,
    pub(crate) who: &'a Ref,
    /// Why the stored resource cannot be read.
    pub(crate) unreadable: Option<Failure>,
    pub(super) used: Mutex<HashSet<String>>,
    pub(super) push: Mutex<Option<Push>>,
}
