//! Fixtures of tests against the dev cluster: a namespace, repositories and cleanup for each test.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::missing_panics_doc,
    clippy::print_stdout,
    reason = "only tests use this"
)]

mod addresses;
mod apply_phases;
mod audit;
mod canary;
mod clock_jump;
mod cluster;
mod counter;
mod crowd;
mod fake_kubelet;
mod gate;
mod inbox;
mod injector;
mod installed_operator;
pub mod metacontroller;
mod operator;
mod registry_front;
pub mod rights;
mod runner_stand_in;
mod scale;
mod scene;
mod soak;
mod state_server;
mod sweep;
mod terraform_registry;
mod tls;

pub use addresses::{host, node};
pub use apply_phases::Applies;
pub use audit::{AuditLog, Request, Sender};
pub use canary::Canaries;
pub use clock_jump::ClockJump;
pub use cluster::{Cluster, NetworkOutage, TAINT};
pub use counter::Counter;
pub use crowd::Crowd;
pub use gate::Gate;
pub use inbox::{Inbox, Message};
pub use injector::Injector;
pub use installed_operator::Memory;
pub use operator::{Operator, Operators};
pub use registry_front::{Fault, RegistryFront};
pub use runner_stand_in::RunnerStandIn;
pub use scale::{
    Calls, Commit, Crash, Filled, Idle, Scale, Size, Start, ratio, variables, write_history,
};
pub use scene::{
    Disk, GitServer, Scene, around, condition, is_ready, scene, scene_alone, scene_of_program,
    scene_with_own_operators, scene_without_operator,
};
pub use soak::soak;
pub use state_server::StateServer;
pub use sweep::{Found, Sweep};
pub use terraform_registry::TerraformRegistry;
pub use tls::{Certificate, TlsListener};
