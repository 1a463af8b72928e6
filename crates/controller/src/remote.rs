//! Queries to git servers, registries and pods, with asynchronous answers.

pub(crate) mod answers;
pub(crate) mod artifact;
pub(crate) mod context_store;
pub(crate) mod failure;
pub(crate) mod git_refs;
pub(crate) mod module_files;
mod packing;
pub(crate) mod polled_cache;
pub(crate) mod prune_request;
pub(crate) mod push_request;
pub(crate) mod queries;
mod smart_http;
mod written_files;
