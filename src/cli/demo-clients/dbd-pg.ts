import type { DemoClient } from './demo-client.ts'
import { isThere, programClient, readJson } from './program.ts'

const script = `
use strict; use DBI; use JSON::PP;
my ($balance, $token) = @ARGV;
my $db = DBI->connect("dbi:Pg:", "", "", { RaiseError => 1, PrintError => 0, AutoCommit => 0 });
eval {
  $db->do("insert into fencepost_demo_line (balance, fence_token) values (?, ?)", undef, $balance, $token);
  $db->do("update fencepost_demo set balance = ?, fence_token = ? where id = 1", undef, $balance, $token);
  $db->commit;
} or do {
  print STDERR encode_json({
    sqlstate => $db->state,
    message => $db->pg_error_field("primary"),
    detail => $db->pg_error_field("detail"),
  });
  $db->rollback;
  exit 1;
};
$db->disconnect;
`

export async function missing(): Promise<string | undefined> {
  return (await isThere('perl', '-MDBD::Pg', '-e', '1'))
    ? undefined
    : 'Perl has no DBD::Pg: install it (Debian: libdbd-pg-perl)'
}

export async function open(url: string): Promise<DemoClient> {
  return programClient(
    url,
    ({ balance, token }) => ({ program: 'perl', args: ['-e', script, '--', String(balance), String(token)] }),
    readJson,
  )
}
