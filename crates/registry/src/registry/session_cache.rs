//! Caches sessions until their token expires. A session is a repository with the authorization of one credential.

use std::{collections::HashMap, sync::Arc, time::Instant};

use parking_lot::Mutex;

use super::session::Session;
use crate::{
    auth::Operation,
    credential::{Access, Credential},
    name::ImageName,
};

/// Maximum number of sessions in the cache. If a session is added to a full cache, all other sessions are discarded.
const MAX_SESSIONS: usize = 256;

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

#[derive(Default)]
pub(super) struct SessionCache(Mutex<HashMap<SessionKey, Arc<Session>>>);

impl SessionCache {
    pub(super) fn get(&self, key: &SessionKey, now: Instant) -> Option<Arc<Session>> {
        let sessions = self.0.lock();
        sessions
            .get(key)
            .filter(|session| session.renew_at > now)
            .cloned()
    }

    pub(super) fn insert(&self, key: SessionKey, session: Arc<Session>, now: Instant) {
        let mut sessions = self.0.lock();
        sessions.retain(|_, session| session.renew_at > now);
        if sessions.len() >= MAX_SESSIONS {
            sessions.clear();
        }
        sessions.insert(key, session);
    }

    pub(super) fn remove(&self, key: &SessionKey) {
        self.0.lock().remove(key);
    }
}
