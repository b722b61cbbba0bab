//! Closes an ACME account outside of the replicas, as its owner could.

use std::path::Path;
use std::pin::Pin;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::{Request, Response};
use instant_acme::{Account, BodyWrapper, BytesResponse, Error, HttpClient, Key};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

struct Http(reqwest::Client);

impl HttpClient for Http {
    fn request(&self, request: Request<BodyWrapper<Bytes>>) -> Pin<Box<dyn Future<Output = Result<BytesResponse, Error>> + Send>> {
        let client = self.0.clone();
        Box::pin(async move {
            let (head, body) = request.into_parts();
            let Ok(body) = body.collect().await;
            let request = reqwest::Request::try_from(Request::from_parts(head, body.to_bytes())).expect("a request");
            let answer = client.execute(request).await.expect("an answer");
            let mut whole = Response::builder().status(answer.status());
            *whole.headers_mut().expect("a head") = answer.headers().clone();
            Ok(BytesResponse::from(whole.body(Full::new(answer.bytes().await.expect("a body"))).expect("an answer")))
        })
    }
}

/// Closes the account with the key `pem`.
pub(crate) async fn close(directory: &str, ca: &Path, pem: &str) {
    let authorities = reqwest::Certificate::from_pem_bundle(&std::fs::read(ca).expect("read")).expect("certificates");
    let http = Http(reqwest::Client::builder().tls_certs_merge(authorities).build().expect("a client"));
    let pkcs8 = PrivatePkcs8KeyDer::from_pem_slice(pem.as_bytes()).expect("a key");
    let key = Key::from_pkcs8_der(pkcs8.clone_key()).expect("a P-256 key");
    let builder = Account::builder_with_http(Box::new(http));
    let (account, _) = builder.from_key((key, PrivateKeyDer::Pkcs8(pkcs8)), directory.to_owned()).await.expect("an account");
    account.deactivate().await.expect("closed");
}
