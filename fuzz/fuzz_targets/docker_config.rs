//! Docker configurations: a parsed configuration survives a round trip.
#![no_main]

use alustan_registry::DockerConfig;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Ok(config) = DockerConfig::parse(bytes) {
        let written = config.to_dockerconfigjson();
        let again = DockerConfig::parse(&written).map(|again| again.to_dockerconfigjson());
        assert_eq!(again.ok(), Some(written));
    }
});
