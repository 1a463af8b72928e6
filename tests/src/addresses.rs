//! Addresses of the dev cluster, which `make cluster-up` writes.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::LazyLock;

use crate::cluster::folder;

/// IP addresses by their names in `hack/cluster/parts/names.sh`.
static ADDRESSES: LazyLock<BTreeMap<String, IpAddr>> = LazyLock::new(|| {
    let file = folder().join("addresses");
    let text = std::fs::read_to_string(&file)
        .unwrap_or_else(|error| panic!("{}: {error}; run `make e2e`", file.display()));
    text.lines()
        .filter_map(|line| line.split_once(' '))
        .map(|(name, address)| (name.to_owned(), address.parse().expect("an IP address")))
        .collect()
});

/// Returns the address of the host on the link to the dev cluster.
pub fn host() -> IpAddr {
    ADDRESSES["HOST_IP"]
}

/// Returns the address of a port of the node. In a URL it is valid as `host:port`.
pub fn node(port: u16) -> SocketAddr {
    (ADDRESSES["NODE_IP"], port).into()
}

/// Returns the address of the API server in the network of the services.
pub(crate) fn api_service() -> SocketAddr {
    (ADDRESSES["API_SERVICE_IP"], 443).into()
}
