//! Caches sessions until their token expires. A session is a repository with the authorization of one credential.

use std::{sync::Arc, time::Instant};

use parking_lot::Mutex;
use quick_cache::{Weighter, unsync::Cache};

use super::session::Session;
use crate::{
    auth::Operation,
    credential::{Access, Credential},
    name::ImageName,
};

/// Maximum size of all sessions in the cache, in bytes. If the sessions exceed the maximum, the least used ones are discarded.
const BYTES: u64 = 8 << 20;
/// Estimated size of a session without its strings, in bytes.
const ENTRY: usize = 512;
/// Estimated number of sessions in a full cache, with tokens of 1.5 KiB.
const SESSIONS: usize = 4_096;

/// Key of a session. It includes the credentials, so that a tenant never uses the token of another tenant.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct SessionKey {
    name: ImageName,
    operation: Operation,
    insecure: bool,
    credential: Option<[u8; 32]>,
    helper: Option<String>,
}

impl SessionKey {
    pub(super) fn new(
        name: &ImageName,
        operation: Operation,
        insecure: bool,
        access: &Access,
    ) -> Self {
        let credential = access.credential.as_ref().map(Credential::fingerprint);
        Self {
            name: name.clone(),
            operation,
            insecure,
            credential,
            helper: access.helper.clone(),
        }
    }
}

/// Size of a session in the cache.
struct Size;

impl Weighter<SessionKey, Arc<Session>> for Size {
    fn weight(&self, key: &SessionKey, session: &Arc<Session>) -> u64 {
        let name = key.name.registry().len() + key.name.repository().len();
        let strings = name + session.base.len() + session.repository.len();
        (ENTRY + strings + session.authorization.size()) as u64
    }
}

pub(super) struct SessionCache(Mutex<Cache<SessionKey, Arc<Session>, Size>>);

impl Default for SessionCache {
    fn default() -> Self {
        Self(Mutex::new(Cache::with_weighter(SESSIONS, BYTES, Size)))
    }
}

impl SessionCache {
    pub(super) fn get(&self, key: &SessionKey, now: Instant) -> Option<Arc<Session>> {
        let sessions = self.0.lock();
        sessions
            .get(key)
            .filter(|session| session.renew_at > now)
            .cloned()
    }

    pub(super) fn insert(&self, key: SessionKey, session: Arc<Session>) {
        self.0.lock().insert(key, session);
    }

    pub(super) fn remove(&self, key: &SessionKey) {
        self.0.lock().remove(key);
    }
}
