//! Drops the in-memory state of a resource.

use std::collections::HashSet;

use crate::context::Context;
use crate::resource::{Ref, to_key};
use crate::slots;

/// Drops queries, watches, queue entry and in-memory state of `resource`, which is deleted or kept only by finalizers of other controllers.
pub(crate) fn forget(ctx: &Context, resource: &Ref) {
    slots::release(ctx, resource);
    ctx.answers.keep(resource, &HashSet::new());
    ctx.objects.keep(resource, &HashSet::new());
    ctx.upstream_activity.forget(&to_key(resource));
    ctx.memory.forget(resource);
    ctx.notifier.forget(resource);
}
