/** Of the server's certificate, as Node tells it. */
const unknownAuthority = new Set([
  'SELF_SIGNED_CERT_IN_CHAIN',
  'DEPTH_ZERO_SELF_SIGNED_CERT',
  'UNABLE_TO_GET_ISSUER_CERT',
  'UNABLE_TO_GET_ISSUER_CERT_LOCALLY',
  'UNABLE_TO_VERIFY_LEAF_SIGNATURE',
  'CERT_SIGNATURE_FAILURE',
])

/** What is wrong with TLS, and what to do about it; undefined when the failure is another. */
export function tlsAdvice(cause: unknown): string | undefined {
  if (!(cause instanceof Error) || !('code' in cause) || typeof cause.code !== 'string') return undefined
  const { code, message } = cause
  // What OpenSSL says has its own source file in it, and a line feed.
  const said = /alert [a-z ]+/.exec(message)?.[0] ?? message.trim()
  if (code === 'ERR_TLS_CERT_ALTNAME_INVALID') {
    return `the server's certificate is for another host (${said}). Name the server in the database URL as its certificate does.`
  }
  if (unknownAuthority.has(code)) {
    return `the server's certificate is of an authority that is not known here (${said}). Name the file of the authority's certificate: sslrootcert=FILE in the database URL, or NODE_EXTRA_CA_CERTS.`
  }
  if (code === 'CERT_HAS_EXPIRED' || code === 'CERT_NOT_YET_VALID') {
    return `the server's certificate is not valid now (${said}). Renew it, or set the clock of this machine.`
  }
  if (code.startsWith('ERR_SSL_') || code.startsWith('ERR_OSSL_')) {
    return `TLS with the server failed (${said}). Check sslcert and sslkey in the database URL, and which authority the server takes clients of.`
  }
  return undefined
}
