//! Bytes of components: whatever they are, they are refused in a few words, or loaded, and then they end when their time is
//! up. It goes on from a small component, which `make fuzz` puts into the corpus.
#![no_main]

use std::sync::LazyLock;
use std::time::Duration;

use akri_engine::{Call, LocalHost, LocalHostConfig};
use akri_model::grant::Limits;
use libfuzzer_sys::fuzz_target;
use tokio::runtime::Runtime;

static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Runtime::new().unwrap());
static HOST: LazyLock<LocalHost> = LazyLock::new(|| {
    let nowhere = "/nowhere";
    LocalHost::new(LocalHostConfig { cache_dir: None, sysfs: nowhere.into(), udev_data: nowhere.into() }).unwrap()
});

fuzz_target!(|bytes: &[u8]| {
    let limits = Limits { round: Duration::from_millis(50), memory_bytes: 16 << 20, log_lines: 0, ..Limits::default() };
    let call = || Call { limits: limits.clone(), ..Call::default() };
    RUNTIME.block_on(async {
        match HOST.load(bytes.to_vec()).await {
            Err(error) => assert!(error.to_string().len() < 4096),
            Ok(component) => {
                assert!(component.description().name.len() <= 253);
                let _ = component.validate(call()).await;
                let _ = component.discover(call()).await.and_then(|set| set.check(&limits));
            }
        }
    });
});
