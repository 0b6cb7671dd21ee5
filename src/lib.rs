//! actiond answers the *required actions* of AI agents.
//!
//! An agent platform pauses a session because the model called one of your functions. actiond learns of it by a signed
//! webhook, reads the authoritative pending calls, runs the handler that the config registers, keeps the result under its
//! call key, and gives it back exactly once in effect.
//!
//! # The path, and where each step lives
//!
//! ```text
//! POST /webhooks/{platform} ─ verify ─ parse ─ publish, confirmed ─ 200                                    ingress, queue
//!
//! queue ─ reconcile(session)                                                                     worker, worker/sessions
//!   1 retrieve   the platform says which calls are pending; the webhook is only a hint                         platform
//!   2 claim      first writer wins, under a lease with a fence                                          store, store/judge
//!   3 validate   arguments against the function's schema; a model's mistake is an answer            arguments, schema
//!   4 call       the handler, with deadline and limits; the claim is renewed meanwhile          worker/answer, handler
//!   5 complete   the exact bytes and their key are stored before anything is sent                                 store
//!   6 submit     one event a request, same bytes, same key                                     worker/submit, platform
//!   7 retrieve again, until nothing of ours is pending; then acknowledge                           worker/reconcile
//! ```
//!
//! Between 3 and 4 a person may be asked ([`approval`]): the call waits in the store, and no worker waits with it.
//!
//! A handler that answers 202 gives its result later, to `POST /results/{token}` ([`later`]); its call waits meanwhile.
//!
//! Where no webhook can come, the platform's list is polled instead ([`worker::sweep`]), or named sessions are followed by
//! their live stream ([`watch`]); a Rebyte workflow run is a session of
//! an account of its own ([`platform::runs_of`]).
//!
//! **Level-triggered.** The queue carries session ids, never truth. One webhook, ten copies of it, a timer or a person all
//! start the same reconcile; what has been done is skipped. A duplicate costs a read, a crash at any line a redelivery, a
//! webhook that never came a sweep ([`worker::sweep`]).
//!
//! **The store owns state and time, the queue owns distribution.** Claims, results, attempts and due times are rows, judged
//! by the database's clock. A retry, a busy call and a confirmation check are all "this session is due then": one scheduler
//! in every worker publishes due sessions ([`worker`]).
//!
//! **Pools.** A function can be pinned to a pool of workers ([`function::Serves`]). Everything arrives in the common queue; a
//! worker of no pool hands a session with pinned calls over to the pool's queue, and claims nothing of them, so that what a
//! redelivery says of its last holder stays true in either queue. Each worker answers the calls that are its own.
//!
//! # The other door
//!
//! AIVAX sends no webhooks: it calls each function and waits ([`callback`]). The same functions and the same ledger answer it,
//! without queue and submission. [`function::source`] imports functions from catalogues in AIVAX's listing format.
//!
//! # The operator's side
//!
//! What a person sees and does is in [`operator`], whoever asks: the commands, on the store or with `--server`; the [`api`]; the
//! [`dashboard`], rendered here. The rules for what may be done to a call are the store's. A function that is paused is a row
//! there, which every process looks at every two seconds; its calls are postponed like those over a limit.
//!
//! # Seams
//!
//! [`queue::Queue`], [`store::Store`], [`platform::Platform`] and [`handler::Handler`] are small traits whose answers say
//! what to do next. Each implementation is one module below its seam and alone names its driver crate. [`app`] is the only
//! place that names concrete types; [`session`] is the vocabulary that all share.
//!
//! | to add | write | and name it in |
//! |---|---|---|
//! | a handler kind | `src/handler/NAME.rs` | `handler::build`, `config/functions.rs` |
//! | a platform | `src/platform/NAME.rs` | `app::adapter`, `config/platforms.rs` |
//! | a queue or store | `src/queue/NAME.rs`, `src/store/NAME.rs`, a line in its contract suite | `app`, `config/sections.rs` |

//!
//! # Embedding
//!
//! A program can bring its own handlers; what they answer goes the same path.
//!
//! ```
//! use actiond::{App, app::Role, config, handler::Call, metrics::Metrics, session::ToolResult};
//!
//! # #[tokio::main]
//! # async fn main() -> anyhow::Result<()> {
//! # let file = std::env::temp_dir().join(format!("actiond-doc-{}.db", std::process::id()));
//! # let env = |name: &str| (name == "STORE").then(|| format!("sqlite://{}", file.display()));
//! let text = r#"
//! store: { url: "${STORE}" }
//! functions:
//!   - name: add
//!     description: Adds two numbers.
//!     parameters: { type: object, properties: { a: { type: integer }, b: { type: integer } }, required: [a, b] }
//!     handler: { type: rust }
//! "#;
//! let config = config::parse(text, &env)?.config;
//! let app = App::builder(config)
//!     .handler("add", |call: Call| async move {
//!         let number = |name: &str| call.arguments.value()[name].as_i64().unwrap_or_default();
//!         Ok((number("a") + number("b")).to_string())
//!     })
//!     .build(Role::All, Metrics::new())
//!     .await?;
//!
//! assert_eq!(app.try_call("add", r#"{"a":40,"b":2}"#).await?, ToolResult::Success("42".into()));
//! // app.run(listeners, stop).await answers the platforms.
//! # drop(app);
//! # for end in ["", "-wal", "-shm", ".lock"] { let _ = std::fs::remove_file(format!("{}{end}", file.display())); }
//! # Ok(())
//! # }
//! ```

pub mod admin;
pub mod allow;
pub mod api;
pub mod app;
pub mod approval;
pub mod arguments;
pub mod callback;
pub mod cli;
pub mod config;
pub mod dashboard;
pub mod demo;
pub mod function;
pub mod handler;
pub mod http;
pub mod ingress;
pub mod later;
pub mod limits;
pub mod mcp;
pub mod metrics;
pub mod nonce;
pub mod operator;
pub mod platform;
mod process;
pub mod queue;
pub mod redact;
pub mod retry;
pub mod sandbox;
pub mod schema;
pub mod send;
pub mod session;
mod shown;
pub mod store;
pub mod telemetry;
mod token;
pub mod tools;
pub mod watch;
pub mod worker;

pub use app::App;
