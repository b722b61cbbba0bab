//! Logs: structured lines on standard error, as text or as JSON for log collectors.
//!
//! Initialized once, by the binary. Panics are logged too.

use std::panic::PanicHookInfo;

use tracing::subscriber::DefaultGuard;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::ParseError;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};

#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    #[error("log filter {filter:?} is not understood (examples: info, debug, info,tailyard::proxy=debug): {source}")]
    Filter { filter: String, source: ParseError },
    #[error("logs can be set up only once in a process: {0}")]
    Twice(#[from] TryInitError),
}

/// Initializes the logs of the process: text, or with `json` one JSON object per line. `filter` has the syntax of `tracing`'s directives,
/// e.g. `info,tailyard::proxy=debug`; the level `debug` or `trace` alone is that of Tailyard, with warnings of libraries.
pub fn init(json: bool, filter: &str) -> Result<(), TelemetryError> {
    subscriber(json, filter, std::io::stderr)?.try_init()?;
    std::panic::set_hook(Box::new(log_panic));
    Ok(())
}

/// Logs of this thread until the guard is dropped, before the settings of the process's logs are known.
pub fn temporary(json: bool) -> Result<DefaultGuard, TelemetryError> {
    Ok(tracing::subscriber::set_default(subscriber(json, "info", std::io::stderr)?))
}

type Subscriber = Box<dyn tracing::Subscriber + Send + Sync>;

fn subscriber<W>(json: bool, filter: &str, writer: W) -> Result<Subscriber, TelemetryError>
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    // The callers log failed API requests, with their purpose; the Kubernetes client's own messages would repeat them. The DNS server has two
    // lines for each query.
    let own = if matches!(filter.trim(), "debug" | "trace") { format!("warn,tailyard={}", filter.trim()) } else { filter.to_owned() };
    let directives = EnvFilter::builder()
        .parse(format!("kube_client=off,hickory_server=warn,{own}"))
        .map_err(|source| TelemetryError::Filter { filter: filter.to_owned(), source })?;
    let lines = tracing_subscriber::fmt().with_env_filter(directives).with_writer(writer).with_ansi(false);
    Ok(if json { Box::new(lines.json().flatten_event(true).with_current_span(false).finish()) } else { Box::new(lines.finish()) })
}

fn log_panic(info: &PanicHookInfo<'_>) {
    let place = info.location().map(ToString::to_string).unwrap_or_default();
    tracing::error!(place, "panic: {}", info.payload_as_str().unwrap_or("without a message"));
}

#[cfg(test)]
mod tests {
    use std::io::{self, Write};
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn logged(json: bool, filter: &str) -> String {
        let lines = Lines::default();
        let writer = lines.clone();
        let subscriber = subscriber(json, filter, move || writer.clone()).expect("a good filter");
        tracing::subscriber::with_default(subscriber, || {
            tracing::info!(services = 3, "applied");
            tracing::debug!("detail");
            tracing::debug!(target: "hyper::proto", "flushed");
            tracing::error!(target: "kube_client::client::builder", "failed with error");
        });
        let bytes = lines.0.lock().unwrap().clone();
        String::from_utf8(bytes).expect("text")
    }

    /// Messages that pass a filter, one per line.
    fn messages(filter: &str) -> Vec<&'static str> {
        let expected = ["applied", "detail", "flushed", "failed with error"];
        let text = logged(false, filter);
        text.lines().map(|line| expected.into_iter().find(|message| line.contains(message)).expect("one of ours")).collect()
    }

    #[test]
    fn json_lines_are_objects() {
        let text = logged(true, "info");
        let line: serde_json::Value = serde_json::from_str(text.trim()).expect("one JSON object");
        assert_eq!((line["message"].as_str(), line["services"].as_i64()), (Some("applied"), Some(3)));
    }

    #[test]
    fn filter_selects_log_levels() {
        assert_eq!(messages("info"), ["applied"]);
        assert_eq!(messages("debug"), ["applied", "detail"]);
        assert_eq!(messages("off"), [""; 0]);
    }

    #[test]
    fn libraries_log_details_only_by_their_own_directive() {
        for level in ["debug", "trace"] {
            assert_eq!(messages(level), ["applied", "detail"]);
        }
        assert_eq!(messages("debug,hyper=debug"), ["applied", "detail", "flushed"]);
    }

    #[test]
    fn kubernetes_client_logs_are_enabled_by_filter() {
        assert_eq!(messages("info,kube_client=info"), ["applied", "failed with error"]);
    }

    #[test]
    fn invalid_filter_is_an_error_with_examples() {
        let error = subscriber(false, "tailyard=loud", io::sink).err().expect("no such level");
        assert!(error.to_string().contains("examples"), "{error}");
    }
}
