//! Jumps of the clock of the machine.

use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Length of a jump. Certificates and tokens of the dev cluster are valid for longer.
const LENGTH: Duration = Duration::from_mins(10);

/// Clock of the machine that is ahead. It is also the clock of the dev cluster. The clock jumps back when this value is dropped.
pub struct ClockJump(());

impl ClockJump {
    /// Moves the clock ahead by ten minutes.
    pub fn ten_minutes_ahead() -> Self {
        assert!(
            set_clock(SystemTime::now() + LENGTH),
            "the clock cannot be set"
        );
        Self(())
    }
}

impl Drop for ClockJump {
    fn drop(&mut self) {
        if !set_clock(SystemTime::now() - LENGTH) {
            println!("the clock of this machine is {LENGTH:?} ahead");
        }
    }
}

/// Returns whether the clock was set.
fn set_clock(time: SystemTime) -> bool {
    let since_epoch = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let argument = format!("--set=@{}", since_epoch.as_secs_f64());
    let set = Command::new("date").args(["--utc", &argument]).output();
    set.is_ok_and(|output| output.status.success())
}
