//! Jumps of the clock of the machine.

use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Jump of the clock of the machine, which is also the clock of the dev cluster. The clock jumps back when this value is dropped.
pub struct ClockJump {
    offset: Offset,
}

#[derive(Clone, Copy)]
enum Offset {
    Forward(Duration),
    Back(Duration),
}

impl ClockJump {
    /// Moves the clock by `minutes`.
    pub fn of_minutes(minutes: i64) -> Self {
        let length = Duration::from_mins(minutes.unsigned_abs());
        let offset = if minutes < 0 {
            Offset::Back(length)
        } else {
            Offset::Forward(length)
        };
        assert!(jump(offset), "the clock cannot be set");
        Self { offset }
    }
}

impl Drop for ClockJump {
    fn drop(&mut self) {
        let reverse = match self.offset {
            Offset::Forward(length) => Offset::Back(length),
            Offset::Back(length) => Offset::Forward(length),
        };
        if !jump(reverse) {
            println!("the clock of this machine may be wrong");
        }
    }
}

/// Returns whether the clock was set.
fn jump(offset: Offset) -> bool {
    let now = SystemTime::now();
    let then = match offset {
        Offset::Forward(length) => now + length,
        Offset::Back(length) => now - length,
    };
    let since_epoch = then.duration_since(UNIX_EPOCH).unwrap_or_default();
    let time = format!("--set=@{}", since_epoch.as_secs_f64());
    let set = Command::new("date").args(["--utc", &time]).output();
    set.is_ok_and(|output| output.status.success())
}
