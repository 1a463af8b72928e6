//! What the last looks came to, and who waits for the next one of another.

use std::collections::BTreeMap;

use alustan_api::Terraform;
use alustan_core::observed::Key;
use alustan_core::upstream_changes::{self, Doing, Look};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::mpsc::UnboundedSender;

use crate::resource::Ref;
use crate::watch::mapping::to_ref;

/// The last look at each resource since this process started.
pub(crate) struct UpstreamActivity {
    wake: UnboundedSender<Ref>,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    looks: BTreeMap<Key, Look>,
    /// Who found that another one may have other outputs soon, and which.
    waiting: BTreeMap<Key, Key>,
}

impl UpstreamActivity {
    /// Nobody was looked at yet; `wake` gets those that waited for another.
    pub(crate) fn new(wake: UnboundedSender<Ref>) -> Self {
        Self {
            wake,
            known: Mutex::default(),
        }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock()
    }

    /// Who may soon have other outputs of those that `tf` takes outputs from, see
    /// [`upstream_changes::changing`]. `tf` is woken by the next look at it that comes to something else.
    pub(crate) fn changing(
        &self,
        tf: &Terraform,
        all: &BTreeMap<Key, &Terraform>,
        version: impl Fn(&Terraform) -> Option<String>,
    ) -> Option<Key> {
        let mut known = self.known();
        let changing = upstream_changes::changing(tf, all, &known.looks, version);
        match &changing {
            Some(of) => known.waiting.insert(Key::of(tf), of.clone()),
            None => known.waiting.remove(&Key::of(tf)),
        };
        changing
    }

    /// What the last look at `of` came to, once what it decided is done. While `of` waits, others may
    /// have to wait for somebody else now.
    pub(crate) fn note(&self, of: &Key, look: Look) {
        let mut known = self.known();
        let news = look.doing == Doing::Waits || known.looks.get(of) != Some(&look);
        known.looks.insert(of.clone(), look);
        if news {
            self.wake_for(&known, of);
        }
    }

    /// `of` is gone.
    pub(crate) fn forget(&self, of: &Key) {
        let mut known = self.known();
        known.looks.remove(of);
        known.waiting.remove(of);
        self.wake_for(&known, of);
    }

    fn wake_for(&self, known: &Known, of: &Key) {
        for (who, _) in known
            .waiting
            .iter()
            .filter(|(_, waits_for)| *waits_for == of)
        {
            // The receiver lives as long as the controller.
            let _ = self.wake.send(to_ref(who));
        }
    }
}
