//! Time source of reconciles.

use k8s_openapi::jiff::Timestamp;

/// Clock of the system. Stories on an API server in memory set their own time.
#[derive(Clone, Default)]
pub(crate) struct Clock {
    #[cfg(test)]
    simulated: Option<std::sync::Arc<parking_lot::Mutex<Timestamp>>>,
}

impl Clock {
    /// Returns the current time.
    pub(crate) fn now(&self) -> Timestamp {
        #[cfg(test)]
        if let Some(simulated) = &self.simulated {
            return *simulated.lock();
        }
        Timestamp::now()
    }
}

#[cfg(test)]
impl Clock {
    /// Returns a clock that shows `start` until [`Self::advance`].
    pub(crate) fn simulated(start: Timestamp) -> Self {
        Self {
            simulated: Some(std::sync::Arc::new(parking_lot::Mutex::new(start))),
        }
    }

    /// Advances a simulated clock.
    pub(crate) fn advance(&self, time: k8s_openapi::jiff::SignedDuration) {
        if let Some(simulated) = &self.simulated {
            *simulated.lock() += time;
        }
    }
}
