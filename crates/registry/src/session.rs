//! Caches sessions until their token expires. A session is a repository with the authorization of one credential.

use std::{collections::HashMap, sync::Arc, time::Instant};

use parking_lot::Mutex;

use crate::{
    auth::Operation,
    credential::{Access, Credential},
    name::ImageName,
    registry::raw::Raw,
};

/// Maximum number of sessions. When it is reached, all sessions are discarded.
const MOST: usize = 256;

/// Key of a session. It includes the credentials, so that a tenant never uses the token of another tenant.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct SessionKey {
    name: ImageName,
    operation: Operation,
    insecure: bool,
    credential: Option<[u8; 32]>,
    helper: Option<String>,
}

impl SessionKey {
    pub(crate) fn new(
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
pub(crate) struct Sessions(Mutex<HashMap<SessionKey, Arc<Raw>>>);

impl Sessions {
    pub(crate) fn get(&self, key: &SessionKey, now: Instant) -> Option<Arc<Raw>> {
        let sessions = self.0.lock();
        sessions.get(key).filter(|raw| raw.end > now).cloned()
    }

    pub(crate) fn keep(&self, key: SessionKey, raw: Arc<Raw>, now: Instant) {
        let mut sessions = self.0.lock();
        sessions.retain(|_, raw| raw.end > now);
        if sessions.len() >= MOST {
            sessions.clear();
        }
        sessions.insert(key, raw);
    }

    pub(crate) fn forget(&self, key: &SessionKey) {
        self.0.lock().remove(key);
    }
}
