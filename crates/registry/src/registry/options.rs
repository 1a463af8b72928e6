//! Options of the client of registries.

use std::time::Duration;

/// How registries are reached.
#[derive(Clone, Debug)]
pub struct Options {
    /// `host[:port]` of registries that speak plain http. All others must speak TLS with a certificate that is trusted.
    pub insecure_hosts: Vec<String>,
    /// PEM certificates, one or many in each, that are trusted besides the system's.
    pub ca_pem: Vec<String>,
    /// Time for a connection [10 s].
    pub connect_timeout: Duration,
    /// Time for a question, signing in included [30 s].
    pub timeout: Duration,
    /// Time for a push or pull of a context, signing in included [5 min].
    pub transfer_timeout: Duration,
    /// Bytes of a context that is pulled [256 MiB].
    pub context_bytes: usize,
    /// Delay before the first retry of a request of [`Registry::append`](crate::Registry::append); doubles with each retry [500 ms].
    pub retry_delay: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            insecure_hosts: Vec::new(),
            ca_pem: Vec::new(),
            connect_timeout: Duration::from_secs(10),
            timeout: Duration::from_secs(30),
            transfer_timeout: Duration::from_mins(5),
            context_bytes: 256 << 20,
            retry_delay: Duration::from_millis(500),
        }
    }
}
