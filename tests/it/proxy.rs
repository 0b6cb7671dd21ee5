//! A TCP proxy on loopback that can be cut, silenced and healed.

use std::{net::SocketAddr, sync::Arc};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::watch,
};

pub(crate) struct Proxy {
    pub(crate) at: SocketAddr,
    flow: Arc<watch::Sender<Flow>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Flow {
    Open,
    /// Connections stay, and the target's words do not come through.
    Silent,
    Cut,
}

impl Proxy {
    pub(crate) async fn new(target: String) -> Self {
        Self::among(vec![target]).await
    }

    /// In front of the nodes of a cluster: every connection goes to the first that takes it, beginning with the next.
    pub(crate) async fn among(targets: Vec<String>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        let flow = Arc::new(watch::Sender::new(Flow::Open));
        let state = flow.clone();
        tokio::spawn(async move {
            let mut targets = targets;
            loop {
                let (client, _) = listener.accept().await.unwrap();
                let mut state = state.subscribe();
                if *state.borrow_and_update() != Flow::Cut {
                    tokio::spawn(carry(client, targets.clone(), state));
                    targets.rotate_left(1);
                }
            }
        });
        Self { at, flow }
    }

    /// Breaks every connection; new ones are closed at once.
    pub(crate) fn cut(&self) {
        self.flow.send_replace(Flow::Cut);
    }

    /// What the target says is held back; what it is told still reaches it.
    pub(crate) fn silence(&self) {
        self.flow.send_replace(Flow::Silent);
    }

    pub(crate) fn heal(&self) {
        self.flow.send_replace(Flow::Open);
    }
}

async fn carry(client: TcpStream, targets: Vec<String>, state: watch::Receiver<Flow>) {
    let Some(server) = connect(&targets).await else { return };
    let (mut cut, listening) = (state.clone(), state);
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    tokio::select! {
        () = pump(from_client, to_server, None) => {}
        () = pump(from_server, to_client, Some(listening)) => {}
        _ = cut.wait_for(|flow| *flow == Flow::Cut) => {}
    }
}

async fn connect(targets: &[String]) -> Option<TcpStream> {
    for target in targets {
        if let Ok(server) = TcpStream::connect(target).await {
            return Some(server);
        }
    }
    None
}

/// Ends with either side. With a state, it waits while that is silent.
async fn pump(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut state: Option<watch::Receiver<Flow>>,
) {
    let mut buffer = vec![0; 16 * 1024];
    loop {
        let Ok(count @ 1..) = from.read(&mut buffer).await else { return };
        if let Some(state) = &mut state
            && state.wait_for(|flow| *flow != Flow::Silent).await.is_err()
        {
            return;
        }
        if to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}

/// The URL with the proxy's address in the place of host and port, and the address that stood there.
pub(crate) async fn before(url: &str) -> (Proxy, String) {
    let (head, rest) = url.rsplit_once('@').unwrap();
    let (target, path) = rest.split_once('/').unwrap();
    let proxy = Proxy::new(target.to_owned()).await;
    let url = format!("{head}@{}/{path}", proxy.at);
    (proxy, url)
}
