//! Options of the registry client.

use std::time::Duration;

/// Connection settings for all registries.
#[derive(Clone, Debug)]
pub struct Options {
    /// Registries to access over plain HTTP, as `host[:port]`. All other registries must support TLS with a trusted certificate.
    pub insecure_hosts: Vec<String>,
    /// PEM bundles with CA certificates to trust in addition to the system certificates.
    pub ca_pem: Vec<String>,
    /// Timeout for a connection. Default: 10 s.
    pub connect_timeout: Duration,
    /// Timeout for a request, including authentication. Default: 30 s.
    pub timeout: Duration,
    /// Timeout for a push or pull of a context, including authentication. Default: 5 min.
    pub transfer_timeout: Duration,
    /// Maximum size of a pulled context, in bytes. Default: 256 MiB.
    pub context_bytes: usize,
    /// Delay before the first retry of a request of [`Registry::append`](crate::Registry::append). The delay doubles with each retry.
    /// Default: 500 ms.
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
