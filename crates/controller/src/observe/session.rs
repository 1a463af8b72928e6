//! One reconcile of one resource.

use std::collections::HashSet;

use alustan_api::Terraform;
use alustan_api::report::Failure;
use parking_lot::Mutex;

use crate::context::Context;
use crate::remote::queries::Push;
use crate::resource::Ref;

/// One look at one resource. It knows the questions that the resource still has, and how its
/// context would be pushed.
pub(crate) struct Observer<'a> {
    pub(crate) cx: &'a Context,
    pub(crate) tf: &'a Terraform,
    pub(crate) who: &'a Ref,
    /// What is wrong with the resource, if nobody can read it as it is stored.
    pub(crate) unreadable: Option<Failure>,
    pub(super) used: Mutex<HashSet<String>>,
    pub(super) push: Mutex<Option<Push>>,
}
