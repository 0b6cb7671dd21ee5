//! A TCP proxy on loopback that can be cut and healed.

use std::{net::SocketAddr, sync::Arc};

use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    sync::watch,
};

pub(crate) struct Proxy {
    pub(crate) at: SocketAddr,
    open: Arc<watch::Sender<bool>>,
}

impl Proxy {
    pub(crate) async fn new(target: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        let open = Arc::new(watch::Sender::new(true));
        let state = open.clone();
        tokio::spawn(async move {
            loop {
                let (client, _) = listener.accept().await.unwrap();
                let mut state = state.subscribe();
                if *state.borrow_and_update() {
                    tokio::spawn(carry(client, target.clone(), state));
                }
            }
        });
        Self { at, open }
    }

    /// Breaks every connection; new ones are closed at once.
    pub(crate) fn cut(&self) {
        self.open.send_replace(false);
    }

    pub(crate) fn heal(&self) {
        self.open.send_replace(true);
    }
}

async fn carry(mut client: TcpStream, target: String, mut state: watch::Receiver<bool>) {
    let Ok(mut server) = TcpStream::connect(target).await else { return };
    tokio::select! {
        _ = copy_bidirectional(&mut client, &mut server) => {}
        _ = state.changed() => {}
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
