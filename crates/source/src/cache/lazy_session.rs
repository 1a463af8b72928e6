//! Session of the git calls for one request.

use std::{collections::BTreeMap, ffi::OsString, path::Path};

use tokio::sync::OnceCell;

use crate::{credentials::Credentials, error::Error, git::Session, url::RepositoryUrl};

/// Session that is opened by the first git call: a request whose answer is in memory writes no credentials to disk.
pub(super) struct LazySession<'a> {
    /// Folder in which the session creates its private folder.
    pub(super) root: &'a Path,
    pub(super) url: &'a RepositoryUrl,
    pub(super) credentials: &'a Credentials,
    /// Environment variables of git.
    pub(super) environment: &'a BTreeMap<String, OsString>,
    pub(super) opened: OnceCell<Session>,
}

impl LazySession<'_> {
    pub(super) async fn get(&self) -> Result<&Session, Error> {
        let open = async || Session::open(self.root, self.url, self.credentials, self.environment);
        self.opened.get_or_try_init(open).await
    }
}
