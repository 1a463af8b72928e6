# shellcheck shell=bash
# nginx in front of registries (5000 http, 443 https), git over https (443) and moto (443, hack/cluster/aws-up).
# Access logs are JSON lines with the bytes received: registry-access.jsonl, private-registry-access.jsonl, git-access.jsonl.

web_start() {
  local dir=$DEV/nginx any=
  [ "$IP_FAMILY" = ipv4 ] || any="[::]:"
  port_free nginx 443 5000
  mkdir -p "$dir"
  install -m 644 "$ROOT/hack/cluster/config/htpasswd" "$dir/htpasswd" # workers may have no access to the checkout
  cat >"$dir/nginx.conf" <<E
daemon off;
pid $dir/pid;
error_log stderr warn;
worker_processes 2;
events { worker_connections 1024; }
http {
  log_format json escape=json '{"time":\$msec,"client":"\$remote_addr","host":"\$host","method":"\$request_method","uri":"\$request_uri",'
    '"status":\$status,"received":\$request_length,"sent":\$bytes_sent,"seconds":\$request_time,"agent":"\$http_user_agent"}';
  access_log off;
  client_body_temp_path $dir/body; proxy_temp_path $dir/proxy; fastcgi_temp_path $dir/fastcgi;
  uwsgi_temp_path $dir/uwsgi; scgi_temp_path $dir/scgi;
  client_max_body_size 0;
  proxy_request_buffering off; proxy_buffering off; proxy_http_version 1.1; proxy_read_timeout 600s;
  proxy_set_header Host \$http_host; proxy_set_header X-Forwarded-Proto \$scheme; proxy_set_header Connection "";
  ssl_certificate $DEV/pki/web.crt; ssl_certificate_key $DEV/pki/web.key;
  upstream registry { server 127.0.0.1:5001; keepalive 16; }
  upstream private { server 127.0.0.1:5002; keepalive 16; }

  server { # registry.alustan.test:5000
    listen ${any}5000;
    access_log $DEV/log/registry-access.jsonl json;
    location / { proxy_pass http://registry; }
  }
  server { # private-registry.alustan.test, Docker Hub's names, and the bare address (containerd)
    listen ${any}443 ssl default_server;
    access_log $DEV/log/private-registry-access.jsonl json;
    location / { proxy_pass http://private; }
  }
  server { # AWS: 502 until hack/cluster/aws-up
    listen ${any}443 ssl;
    server_name .amazonaws.com;
    location / { proxy_pass http://127.0.0.1:5566; }
  }
  server {
    listen ${any}443 ssl;
    server_name ${GIT_HOSTS[*]};
    access_log $DEV/log/git-access.jsonl json;
    fastcgi_param GIT_PROJECT_ROOT $DEV/git;
    fastcgi_param GIT_HTTP_EXPORT_ALL 1;
    fastcgi_param GIT_CONFIG_GLOBAL $DEV/gitconfig;
    fastcgi_param GIT_CONFIG_NOSYSTEM 1;
    fastcgi_param GIT_PROTOCOL \$http_git_protocol;
    fastcgi_param HTTP_CONTENT_ENCODING \$http_content_encoding;
    fastcgi_param SCRIPT_FILENAME $(git --exec-path)/git-http-backend;
    fastcgi_param QUERY_STRING \$query_string;
    fastcgi_param REQUEST_METHOD \$request_method;
    fastcgi_param CONTENT_TYPE \$content_type;
    fastcgi_param REMOTE_USER \$remote_user;
    fastcgi_param REMOTE_ADDR \$remote_addr;
    fastcgi_param PATH_INFO /\$repo.git/\$service;
    fastcgi_buffering off; fastcgi_read_timeout 600s;
    location ~ ^/(?<repo>private/.+?)(?:\.git)?/(?<service>info/refs|git-upload-pack|git-receive-pack)\$ {
      auth_basic private;
      auth_basic_user_file $dir/htpasswd;
      fastcgi_pass unix:$DEV/run/git/fcgi.sock;
    }
    location ~ ^/(?<repo>.+?)(?:\.git)?/(?<service>info/refs|git-upload-pack)\$ { fastcgi_pass unix:$DEV/run/git/fcgi.sock; }
    location / { return 404; }
  }
}
E
  start nginx nginx -c "$dir/nginx.conf" -p "$dir" -e stderr
}
