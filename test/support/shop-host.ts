/** Namespaces in which file systems can be mounted and a first process be started, for nobody else on this machine to see. */
export const namespaces = ['--mount', '--pid', '--fork', '--kill-child', '--mount-proc'] as const

/**
 * Makes a host of the shop out of this one, in a mount namespace: $app is /srv/shop, its file of variables is in /etc/shop,
 * and $node is the Node of the PATH. $scratch is an empty folder. What is changed in /etc is not changed outside.
 */
export const shopHost = `
set -eu
mount -t tmpfs tmpfs "$scratch"
for folder in /etc /usr/sbin /usr/local/bin; do
  mkdir -p "$scratch$folder/upper" "$scratch$folder/work"
  layers=lowerdir=$folder,upperdir=$scratch$folder/upper,workdir=$scratch$folder/work
  mount -t overlay -o "$layers" overlay "$folder"
done
mkdir /etc/shop
cp "$app/etc/database.env" /etc/shop/
chmod 600 /etc/shop/database.env
ln -sf "$node" /usr/local/bin/node
mount -t tmpfs tmpfs /srv
mkdir /srv/shop
mount --bind "$app" /srv/shop
mount -t tmpfs tmpfs /run
`
