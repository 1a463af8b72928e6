//! Time source of reconciles.

use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;

/// Clock of the operator.
#[derive(Clone)]
pub(crate) struct Clock(Arc<dyn Fn() -> Timestamp + Send + Sync>);

impl Clock {
    /// Returns the clock of the system.
    pub(crate) fn system() -> Self {
        Self(Arc::new(Timestamp::now))
    }

    /// Returns a clock that shows `time`, for tests.
    #[cfg(test)]
    pub(crate) fn simulated(time: Arc<parking_lot::Mutex<Timestamp>>) -> Self {
        Self(Arc::new(move || *time.lock()))
    }

    /// Returns the current time.
    pub(crate) fn now(&self) -> Timestamp {
        (self.0)()
    }
}
